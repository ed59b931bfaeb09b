"""Contract of trackers: they accept all metrics, quickly, and lose none."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rlax_plugin.ports.protocols import Tracker
from rlax_plugin.testing.contracts.inspection import Inspection, eventually, require
from rlax_plugin.testing.contracts.trial import Trial

_STEPS = 20
WRITTEN_S = 5.0  # a library's own process may write what it was given
_MOST_S = 0.1  # of one log; the controller's event loop waits for it
# Names that stay whole where files are compressed.
_FIRST, _LAST = "check/wvjqzkxbfg", "check/zqxjkvbwfy"
_LATE, _NEXT = "check/qjzxvwkfbh", "check/jwqvzkxfbg"


def check_tracker(trial: Trial, part: Inspection) -> None:
    """Logs metrics of a run's steps, and of a run that resumes after a kill."""
    tracker: Tracker = trial.built(part)
    build, run_dir = trial.build, trial.run_dir
    last_step = 9 + _STEPS
    metrics = {f"train/metric_{i}": i / 7 for i in range(30)}
    with part.rule(
        "takes any metrics, step after step, also none and NaN",
        "pass on or leave out what is not finite (math.isfinite), but do not raise: the first sign "
        "of a run that diverges is a NaN; replace characters that the service does not know",
    ):
        tracker.log(1, {_FIRST: 1.0})
        tracker.log(6, {})
        tracker.log(7, {"train/nan": math.nan, "train/inf": math.inf, "train/less": -math.inf})
        tracker.log(8, {"evaluation/pass@8": 0.5, "time/p99.9 (s)": 1, "behaviour/w̄²": 2.0})
    with part.rule(
        f"log returns within {_MOST_S:g} s: the event loop waits for it",
        "hand metrics to a queue or a thread of the library's, and write there",
    ):
        took_s = []
        for step in range(9, last_step):
            started = time.perf_counter()
            tracker.log(step, metrics)
            took_s.append(time.perf_counter() - started)
        median_s = statistics.median(took_s)
        require(median_s <= _MOST_S, f"it takes {median_s:.2f} s")
    with part.rule(
        "takes further metrics of the last step: those of an evaluation that ends after training",
        "do not raise where a step comes again",
    ):
        tracker.log(last_step, {_LAST: 1.0})
        tracker.log(last_step, {_LATE: 1.0})
    with part.rule(
        f"what was logged last is written within {WRITTEN_S:g} s of close",
        "flush and join in close, and return a text if something is lost",
    ):
        lost = tracker.close()
        require(lost is None, f"close says: {lost}")
        # Of what is kept elsewhere, or in a form that is not legible, nothing can be said.
        legible = _on_disk(run_dir, _FIRST)
        if legible:
            require(_written(run_dir, _LAST), "the first step is on disk, the last one is not")
            late = "the first metrics of a step are on disk, the further ones are not"
            require(_written(run_dir, _LATE), late)
    with part.rule(
        "a run that is continued after a kill logs some steps again: they are there once",
        "open what is there, and leave out what the file has of a step; a Sink of "
        "rlax_plugin.api that knows its last_step is given no step twice",
    ):
        _check_continued(build, last_step, run_dir)


def _check_continued(build: Callable[[], Tracker], last_step: int, run_dir: Path) -> None:
    """Runs a second process, which repeats a step and continues with the next."""
    before, legible = _texts(run_dir), _on_disk(run_dir, _FIRST)
    tracker = build()
    tracker.log(last_step, {_LAST: 1.0})
    tracker.log(last_step + 1, {_NEXT: 1.0})
    lost = tracker.close()
    require(lost is None, f"close says: {lost}")
    if legible:
        require(_written(run_dir, _NEXT), "the steps that follow are not on disk")
        require(_on_disk(run_dir, _FIRST), "what an earlier process logged is gone")
    after = _texts(run_dir)
    # What writes another file for each process, as event files are, is for its reader to judge.
    for path in before.keys() & after.keys():
        had, has = before[path].count(_LAST), after[path].count(_LAST)
        again = f"{path.name} holds {_LAST} {has} times, and held it {had} before"
        require(has <= max(had, 1), again)


def _written(run_dir: Path, name: str) -> bool:
    return asyncio.run(eventually(lambda: _on_disk(run_dir, name), WRITTEN_S))


def _on_disk(run_dir: Path, name: str) -> bool:
    return any(name.encode() in p.read_bytes() for p in run_dir.rglob("*") if p.is_file())


def _texts(run_dir: Path) -> dict[Path, str]:
    """Contents of the text files; databases and event files are left out."""
    found = {}
    for path in run_dir.rglob("*"):
        content = path.read_bytes() if path.is_file() else b"\0"
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            found[path] = text
    return found
