"""Contract of trackers: they take everything, quickly, and lose nothing."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from pathlib import Path

from rlax_plugin.protocols import Tracker
from rlax_plugin.testing.contracts.inspection import Inspection, eventually, require

_STEPS = 20
WRITTEN_S = 5.0  # a library's own process may write what it was given
_MOST_S = 0.1  # of one log; the controller's event loop waits for it
_FIRST, _LAST = "check/wvjqzkxbfg", "check/zqxjkvbwfy"  # stay whole where files are compressed


def check_tracker(tracker: Tracker, run_dir: Path, part: Inspection) -> None:
    """Metrics of a run's steps.

    Args:
      tracker: is closed.
      run_dir: what it may write to.
    """
    metrics = {f"train/metric_{i}": i / 7 for i in range(30)}
    with part.rule("takes metrics named stage/name, step after step", "see protocols.Tracker"):
        tracker.log(1, {_FIRST: 1.0})
        for step in (2, 3, 5):  # those of an evaluation may be missing in between
            tracker.log(step, metrics)
        tracker.log(6, {})
    with part.rule(
        "takes NaN and infinities",
        "pass on or leave out what is not finite (math.isfinite), but do not raise: the first sign "
        "of a run that diverges is a NaN",
    ):
        tracker.log(7, {"train/nan": math.nan, "train/inf": math.inf, "train/less": -math.inf})
    with part.rule(
        "takes any name with one slash, and whole numbers",
        "replace characters that the service does not know",
    ):
        tracker.log(8, {"evaluation/pass@8": 0.5, "time/p99.9 (s)": 1, "behaviour/w̄²": 2.0})
    with part.rule(
        f"log returns within {_MOST_S:g} s: the event loop waits for it",
        "hand metrics to a queue or a thread of the library's, and write there",
    ):
        took_s = []
        for step in range(9, 9 + _STEPS):
            started = time.perf_counter()
            tracker.log(step, metrics)
            took_s.append(time.perf_counter() - started)
        median_s = statistics.median(took_s)
        require(median_s <= _MOST_S, f"it takes {median_s:.2f} s")
    with part.rule(
        f"what was logged last is written within {WRITTEN_S:g} s of close",
        "flush and join in close, and return a text if something is lost",
    ):
        tracker.log(9 + _STEPS, {_LAST: 1.0})
        lost = tracker.close()
        require(lost is None, f"close says: {lost}")
        # Of what is kept elsewhere, or in a form that is not legible, nothing can be said.
        if _on_disk(run_dir, _FIRST):
            written = asyncio.run(eventually(lambda: _on_disk(run_dir, _LAST), WRITTEN_S))
            require(written, "the first step is on disk, the last one is not")


def _on_disk(run_dir: Path, name: str) -> bool:
    return any(name.encode() in p.read_bytes() for p in run_dir.rglob("*") if p.is_file())
