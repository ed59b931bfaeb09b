"""Trackers in real runs: killed and continued, and rejected at the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import Run, lines
from wandb_files import history

from rlax_plugin.metrics.names import find

QUICK = ("rlax.evaluation.problems=0",)


def run(directory: Path, trackers: str, *overrides: str) -> Run:
    return Run(directory, f"rlax.trackers={trackers}", *QUICK, *overrides)


@pytest.mark.long
def test_a_killed_run_is_tracked_as_one(tmp_path: Path) -> None:
    trackers = "[{name: jsonl}, {name: tensorboard}, {name: wandb, mode: offline}]"
    slow = "rlax.trainer={name: bigram, train_s: 0.05, checkpoint_every: 5}"
    killed = run(tmp_path, trackers, slow, "steps=1000")
    tracked = killed.dir / "tracker.jsonl"
    events = killed.dir / "tensorboard"
    killed.until(lambda: len(lines(tracked)) >= 7, "a 7th step")
    # Each tracker has its own pace.
    killed.until(lambda: list(events.glob("events*")), "curves")
    killed.until(lambda: list(killed.dir.glob("wandb/offline-run-*/*.wandb")), "a W&B run")
    killed.process.kill()
    killed.end()
    seen = lines(tracked)[-1]["step"]

    last = int(seen) + 3
    status, out = run(tmp_path, trackers, slow, f"steps={last}").end()
    assert status == 0, out
    steps = killed.steps()
    assert [line["step"] for line in steps] == list(range(1, last + 1))
    assert [line["step"] for line in lines(tracked)] == list(range(1, last + 1))
    # Also of steps done again. One whose batch was on record may have scored nothing.
    rewards = [line.get("reward/mean") for line in lines(tracked)]
    assert rewards == [line.get("reward/mean") for line in steps]
    assert None not in (rewards[0], rewards[-1])
    assert len(list(killed.dir.glob("tensorboard/events*"))) == 2
    first, second = sorted(killed.dir.glob("wandb/offline-run-*/*.wandb"))
    assert first.name == second.name  # of one W&B run, whose newest file has all of it
    assert [row["_step"] for row in history(second)] == list(range(1, last + 1))
    assert (killed.dir / "wandb/latest-run").resolve() == second.parent
    names = {name for line in steps for name in line} - {"step"}
    untold = {name for name in names if (row := find(name)) is None or row.is_pattern}
    assert len(names) > 30 and not untold, "give each a row in rlax_plugin/metrics/names.py"


def test_a_tracker_that_cannot_be_opened_ends_the_run_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rejected = run(tmp_path, f"[{{name: jsonl, path: {tmp_path}/file/below.jsonl}}]")
    status, out = rejected.end()
    assert status == 2
    assert "rlax.trackers = " in out and f"{tmp_path}/file is a file" in " ".join(out.split())
    assert rejected.steps() == []
