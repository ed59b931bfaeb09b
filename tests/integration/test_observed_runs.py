"""An observer's state counts each scored group and each step once, though a run is interrupted.

After kills at every fault point it is that of an undisturbed run, too: see ``test_recovery``.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import HELPERS, Run, held

STEPS = 8
SETTINGS = (
    "rlax.deterministic=true",
    "rlax.observers=[{name: tally}]",
    "rlax.trainer.checkpoint_every=3",
    "rlax.evaluation.problems=0",
    f"steps={STEPS}",
)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    Run.end_all()


def tally(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "runs/testing/tally.json").read_text())


def test_a_step_that_ended_before_its_checkpoint_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped trainer writes the checkpoint of a step that it has reported already."""
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    go = tmp_path / "go"
    settings = (*SETTINGS, *held({6: go}, "checkpoint_every: 9", "train_s: 0.3"))
    stopped = Run(tmp_path, *settings)
    stopped.until(lambda: len(stopped.steps()) >= 2, "two steps")
    stopped.process.send_signal(signal.SIGTERM)
    status, out = stopped.end()
    assert status == 130, out
    go.touch()
    again = Run(tmp_path, *settings)
    assert again.end()[0] == 0
    samples = again.samples()
    groups = {row["group"]: row["rejected"] or "accepted" for row in samples}
    rewards = sum(row["reward"] for row in samples)
    counts = {"steps": STEPS, **Counter(groups.values())}
    assert counts["accepted"] == 4 * STEPS and rewards > 0
    assert tally(tmp_path) == {"step": STEPS, "counts": counts, "rewards": rewards}
