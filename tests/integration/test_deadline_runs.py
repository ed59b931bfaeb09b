"""What real runs say of their deadlines, before and when they expire."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import runs

from rlax_plugin.commands.status.source import seen_here


def test_a_run_warns_once_that_a_deadline_will_not_hold_at_the_speed_it_measures(tmp_path: Path):
    """3 tokens take 0.15 s as assumed and at least 0.9 s in truth, beside 60 s for a reward.

    No batch takes that long: most samples stop early, and rewards take no time.
    """
    run = runs.Run(
        tmp_path,
        "steps=2",
        "rlax.rollouts.engine.token_s=0.3",
        "rlax.rollouts.max_new_tokens=3",
        "rlax.deadlines.batch_s=60.6",
        "rlax.evaluation.problems=0",
    )
    status, out = run.end()
    assert status == 0, out
    warned = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1, out
    assert warned[0].startswith("warning: rlax.deadlines.batch_s = 60.6 s is too short: ")
    assert " s for 16 samples, 16 at once" in warned[0] and "at measured speeds" in warned[0]
    assert warned[0] in (run.dir / "logs/trainer.log").read_text()


# The config's deadline holds while everything is started; only the wait for a worker is short.
IMPATIENT = """
import dataclasses

from rlax_plugin.api import hookimpl
from rlax_plugin.controller.generation import Generation

wait = Generation.wait_for_worker


async def wait_for_worker(self, waiting=None):
    hurried = self.deadlines.model_copy(update={"startup_s": 2.0})
    await wait(dataclasses.replace(self, deadlines=hurried))


Generation.wait_for_worker = wait_for_worker


@hookimpl
def rlax_register_reward():
    return {}
"""


def test_a_run_whose_worker_never_comes_says_what_that_should_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    run = runs.Run(
        tmp_path,
        runs.plugins("impatient"),
        "rlax.rollouts.engine.load_s=600",
        "rlax.deadlines.assume.startup_s=20",
    )
    status, out = run.end()
    assert status == 1
    assert re.search(
        r"the first rollout worker to become ready \(registered: [^)]*\) took longer than 2 s: it "
        r"would have needed about 20 s \(set rlax.deadlines.startup_s to more than that\)",
        " ".join(out.split()),
    )
    seen = seen_here(run.dir)
    assert seen.outcome == "failed"
    assert seen.problem.startswith(
        "the run ended before its last step: the first rollout worker to become ready "
    )
