"""The busy parts of a run, from ``spans.jsonl``: critical path of a step, trace file and chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from rlax_plugin.commands.report.series import COLOURS, NEUTRAL, Chart, layout
from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics import spans as recorded
from rlax_plugin.metrics.spans import TRAINER, Span, StepOfSpans
from rlax_plugin.records.files import RunFiles

CRITICAL = "critical path"
_WAITS = "waits for"
_SAME = 0.01  # of a step: what ends so shortly before something begins has made it begin
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class BusyStep:
    """A step with the spans that overlap it, which others may overlap too.

    Attributes:
      began_s, ended_s: Unix times.
      critical: its critical path, ascending; see ``critical_path``.
    """

    step: int
    began_s: float
    ended_s: float
    spans: tuple[Span, ...]
    critical: tuple[Span, ...]


def read_busy(files: RunFiles, last: int | None = None) -> list[BusyStep]:
    """Returns the steps that have spans, ascending.

    Args:
      last: number of steps at the end of the file; None: all.

    Raises:
      RlaxError: the run has recorded no spans, or they cannot be read.
    """
    try:
        steps = recorded.read(files.get(recorded.NAME), last)
    except FileNotFoundError:
        reason = "no step has ended yet"
        raise RlaxError(f"{recorded.NAME} does not exist: {reason}") from None
    return [_busy(steps, at) for at in range(len(steps))]


def _busy(steps: Sequence[StepOfSpans], at: int) -> BusyStep:
    """Returns a step; spans of its time may be in the lines of the steps beside it."""
    one = steps[at]
    near = steps[max(0, at - 1) : at + 3]
    spans = tuple(
        span
        for line in near
        for span in line.spans
        if span.began_s < one.ended_s and span.ended_s > one.began_s
    )
    path = critical_path(spans, one.began_s, one.ended_s)
    return BusyStep(one.step, one.began_s, one.ended_s, spans, tuple(path))


def critical_path(spans: Sequence[Span], began_s: float, ended_s: float) -> list[Span]:
    """Walks back from the end of a step: what ended last before the next could begin.

    Waiting is not work, and not on the path. A span that goes on at that
    moment is taken only if none ended within ``_SAME`` of the step before it. It is cut off there,
    and at the beginning of the step. Dependencies are not recorded, so the path is a guess from the
    times alone; there may be time between two of its spans in which no part was busy.

    Returns:
      The spans of the path, ascending; they do not overlap.
    """
    near_s = _SAME * (ended_s - began_s)
    left = [span for span in spans if not span.activity.startswith(_WAITS)]
    path: list[Span] = []
    now = ended_s
    while now - began_s > _LEAST_S:
        left = [span for span in left if span.began_s < now - _LEAST_S]
        if not left:
            break

        def place(span: Span, now: float = now) -> tuple[float, float, bool, float]:
            reaches = now if span.ended_s >= now - near_s else span.ended_s
            return reaches, -abs(span.ended_s - now), span.lane == TRAINER, span.began_s

        cause = max(left, key=place)
        end = min(cause.ended_s, now)
        if end <= began_s:
            break
        path.append(cause._replace(began_s=max(cause.began_s, began_s), ended_s=end))
        now = cause.began_s
    return path[::-1]


def lanes_of(steps: Sequence[BusyStep]) -> list[str]:
    """Returns the lanes: the trainer, the controller, the rewards, the weights, the workers."""
    order = [TRAINER, "controller", "rewards", "weights"]
    found = {span.lane for step in steps for span in step.spans}
    return [
        *(lane for lane in order if lane in found),
        *sorted(found - set(order), key=lambda lane: (len(lane), lane)),
    ]


def trace_json(steps: Sequence[BusyStep], run: str) -> str:
    """Returns Chrome's trace events, which Perfetto reads: a thread for each lane.

    Times are in microseconds since the first event; ``otherData`` has its Unix time.
    """
    spans = dict.fromkeys(span for step in steps for span in step.spans)  # once each
    begin_s = min((span.began_s for span in spans), default=0.0)
    threads: dict[tuple[str, str], int] = {(CRITICAL, ""): 1}
    for lane in lanes_of(steps):
        for activity in sorted({span.activity for span in spans if span.lane == lane}):
            # What a worker does at the same time would not be nested in one thread.
            key = (lane, activity if lane.startswith("worker ") else "")
            threads.setdefault(key, len(threads) + 1)

    def event(span: Span, thread: int, **arguments: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "pid": 1,
            "tid": thread,
            "name": span.activity,
            "ts": round(1e6 * (span.began_s - begin_s)),
            "dur": round(1e6 * (span.ended_s - span.began_s)),
            "args": arguments,
        }

    def named(what: str, thread: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "pid": 1, "tid": thread, "name": what, "args": arguments}

    events = [named("process_name", 0, name=run)]
    for (lane, activity), thread in threads.items():
        events.append(named("thread_name", thread, name=f"{lane} {activity}".strip()))
        events.append(named("thread_sort_index", thread, sort_index=thread))
    for span in spans:
        key = (span.lane, span.activity if span.lane.startswith("worker ") else "")
        events.append(event(span, threads[key]))
    for step in steps:
        events += [event(span, 1, step=step.step, lane=span.lane) for span in step.critical]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "began_unix_s": begin_s},
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"))


CHART_STEPS = 50
"""Steps that are read for the chart."""

_COLOURS = {
    "trains": COLOURS[0],
    "generates": COLOURS[2],
    "scores groups": COLOURS[4],
    "loads weights": COLOURS[1],
    "writes a version": COLOURS[7],
    "writes the batch": COLOURS[5],
    "hands over weights": COLOURS[6],
    "saves the controller's state": COLOURS[3],
}
_MOST_SPANS = 2000
_MOST_LANES = 40
_MOST_LABELS = 20  # of steps
_LANE_PX, _FRAME_PX = 24, 130


def busy_chart(steps: Sequence[BusyStep]) -> Chart | None:
    """Returns a chart of the newest of some steps, as many as one chart can show."""
    shown: list[BusyStep] = []
    for step in reversed(steps):
        if shown and sum(len(one.spans) for one in (*shown, step)) > _MOST_SPANS:
            break
        shown.insert(0, step)
    if not shown:
        return None
    lanes = lanes_of(shown)
    left_out = len(lanes) - _MOST_LANES
    lanes = lanes[:_MOST_LANES]
    begin_s = shown[0].began_s
    of_activity: dict[str, list[Span]] = {}
    for span in dict.fromkeys(span for step in shown for span in step.spans):
        if span.lane in lanes and span.ended_s > begin_s:
            of_activity.setdefault(span.activity, []).append(span)
    figure = go.Figure(layout=layout("seconds", "", barmode="overlay", hovermode="closest"))
    for activity, spans in sorted(of_activity.items()):
        bars = _bars(spans, [span.lane for span in spans], begin_s)
        figure.add_trace(bars.update(name=activity, marker_color=_colour(activity)))
    path = [span for step in shown for span in step.critical]
    bars = _bars(path, [CRITICAL] * len(path), begin_s)
    colours = [_colour(span.activity) for span in path]
    figure.add_trace(bars.update(name=CRITICAL, marker_color=colours, showlegend=False))
    every = -(-len(shown) // _MOST_LABELS)
    for step in shown:
        text = f"{step.step}" if (shown[-1].step - step.step) % every == 0 else ""
        figure.add_vline(
            x=step.ended_s - begin_s,
            line={"dash": "dot", "width": 1, "color": NEUTRAL},
            annotation={"text": text, "font": {"size": 10}, "yanchor": "bottom"},
        )
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=[*lanes[::-1], CRITICAL]
    )
    figure.update_yaxes(fixedrange=True)
    height_px = _FRAME_PX + _LANE_PX * (len(lanes) + 1)
    figure.update_layout(legend={"y": 1 + _LANE_PX / height_px})
    caption = (
        f"Steps {shown[0].step:,} to {shown[-1].step:,}; dotted lines are their ends. Drag to zoom "
        "in, double-click to zoom out. rlax report RUN --trace FILE writes all steps."
    )
    if left_out > 0:
        caption += f" {left_out:,} workers have no line."
    return Chart("busy", "Who was busy", caption, figure, height_px=height_px)


def _colour(activity: str) -> str:
    return _COLOURS.get(activity, "#c3c9d4" if activity.startswith("waits") else NEUTRAL)


def _bars(spans: Sequence[Span], lanes: Sequence[str], begin_s: float) -> go.Bar:
    return go.Bar(
        base=[round(span.began_s - begin_s, 4) for span in spans],
        x=[round(span.ended_s - span.began_s, 4) for span in spans],
        y=list(lanes),
        orientation="h",
        marker={"line": {"width": 0}},
        customdata=[f"{span.lane}: {span.activity}" for span in spans],
        hovertemplate="%{customdata}, %{x:.3f} s, from %{base:.3f} s<extra></extra>",
    )
