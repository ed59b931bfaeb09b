"""Runs whose reward fails at every call: the doctor, the status and the guard blame it."""

from __future__ import annotations

import os
from pathlib import Path

import processes
import pytest
from runs import HELPERS, Run, plugins

from rlax_plugin.liveness.status_file import last_status

pytestmark = pytest.mark.slow

MANY = "rlax.curation.max_refill=1000000"
RAISES = "rlax.rewards.0 (raises): ValueError: there is no number in it"
DIES = "the reward process of rlax.rewards.0 (dies) ended with exit code 3"


def failing(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, *overrides: str) -> Run:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    rewards = f"rlax.rewards=[{{name: {name}}}]"
    evaluation = "rlax.evaluation.problems=0"
    return Run(directory, plugins("failing_reward"), rewards, evaluation, *overrides)


@pytest.mark.parametrize(("name", "error"), [("raises", RAISES), ("dies", DIES)])
def test_the_reward_is_named_with_its_error_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    run = failing(tmp_path, monkeypatch, name, MANY, "rlax.curation.guard={warn: 0, stop: 0}")

    def named() -> bool:
        status = last_status(run.dir) if run.dir.is_dir() else None
        controller = None if status is None else status.controller
        return controller is not None and controller.reward_error != ""

    run.until(named, "the error in the status")
    doctor = processes.finished("doctor", str(run.dir), cwd=run.dir)
    said = f"rewards fail, such as: {error}"
    assert doctor.returncode == 1 and f"\n1. {said}" in doctor.stdout, doctor.stdout
    status = processes.finished("status", str(run.dir), "--once", cwd=run.dir)
    assert f"bottleneck: {said}" in status.stdout and "would balance" not in status.stdout
    assert "logs/rewards.log says more" in status.stdout


def test_the_guard_blames_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = "rlax.curation.guard={window: 16}"
    run = failing(tmp_path, monkeypatch, "raises", MANY, few)
    status, out = run.end()
    assert status == 1
    (error,) = (line for line in out.splitlines() if line.startswith("error: "))
    assert "kept 0 (rejected: 16 because all rewards failed)" in error
    assert f": rewards fail, such as: {RAISES}" in error
    assert error.endswith("logs/rewards.log says more") and "rlax.curation.filters" not in error
