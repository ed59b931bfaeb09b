"""``rlax report --trace``: who was busy when, from ``spans.jsonl``, as Chrome's trace events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics import spans as recorded
from rlax_plugin.run.metrics.spans import TRAINER, Span, StepOfSpans

_LANES = (TRAINER, "controller", "rewards", "weights")  # workers follow
_STEPS = "steps"


def trace_of(files: RunFiles, run: str) -> str:
    """Returns the trace of a run.

    Raises:
      RlaxError: the run has recorded no spans, or they cannot be read.
    """
    try:
        steps = recorded.read(files.get(recorded.NAME))
    except FileNotFoundError:
        reason = "no step has ended yet"
        raise RlaxError(f"{recorded.NAME} does not exist: {reason}") from None
    return _trace_json(steps, run)


def _trace_json(steps: Sequence[StepOfSpans], run: str) -> str:
    """Returns trace events, which Perfetto reads: a thread for the steps, and one for each lane.

    Times are in microseconds since the first event; ``otherData`` has its Unix time.
    """
    spans = [Span(_STEPS, f"step {one.step}", one.began_s, one.ended_s) for one in steps]
    spans += [span for one in steps for span in one.spans]
    begin_s = min((span.began_s for span in spans), default=0.0)
    threads = {
        thread: n for n, thread in enumerate(sorted(set(map(_thread, spans)), key=_place), 1)
    }

    def named(kind: str, thread: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "pid": 1, "tid": thread, "name": kind, "args": arguments}

    events = [named("process_name", 0, name=run)]
    for (lane, activity), thread in threads.items():
        events.append(named("thread_name", thread, name=f"{lane} {activity}".strip()))
        events.append(named("thread_sort_index", thread, sort_index=thread))
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": threads[_thread(span)],
            "name": span.activity,
            "ts": round(1e6 * (span.began_s - begin_s)),
            "dur": round(1e6 * (span.ended_s - span.began_s)),
        }
        for span in spans
    ]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "began_unix_s": begin_s},
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"))


def _thread(span: Span) -> tuple[str, str]:
    """Activities of a worker overlap, which events of one thread must not."""
    return span.lane, span.activity if span.lane.startswith("worker ") else ""


def _place(thread: tuple[str, str]) -> tuple[int, int, tuple[str, str]]:
    lanes = (_STEPS, *_LANES)
    lane = thread[0]
    return lanes.index(lane) if lane in lanes else len(lanes), len(lane), thread
