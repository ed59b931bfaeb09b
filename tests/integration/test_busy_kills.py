"""Processes that are killed while they evaluate, and while a version is being published.

A trainer that kills itself at the points of ``records/faults.py`` is in ``test_recovery.py``, a
worker that is killed in an evaluation in ``test_evaluation.py``.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from runs import HELPERS, TWO_WORKERS, Run, command, digests, held, plugins

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

STEPS, EVERY, PROBLEMS = 8, 3, 6
WRITTEN, GO, HELD = Path("written"), Path("go"), 3
REWARDS = "rlax_plugin.rewards.process"


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HELPERS)
        yield


def assert_whole(run: Run, steps: int) -> None:
    """No step is missing or was made twice, and no group either."""
    assert [step["step"] for step in run.steps()] == list(range(1, steps + 1))
    trained = run.trained()
    keys = [(row["group"], row["sample"]) for row in trained]
    assert len(set(keys)) == len(keys) == steps * 16
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation


@pytest.mark.ci
def test_a_reward_process_and_a_trainer_are_killed_in_evaluations(tmp_path):
    settings = (
        *(TWO_WORKERS, f"steps={STEPS}", "rlax.rewards=[{name: held}]"),
        # The newest checkpoint is one before the evaluation that is cut off.
        *held({7: GO}, "checkpoint_every: 5", "learning_rate: 0.1"),
        *(f"rlax.evaluation.every={EVERY}", f"rlax.evaluation.problems={PROBLEMS}"),
        "rlax.reward_processes=2",
    )
    hold, scoring = tmp_path / "hold", tmp_path / "scoring"
    run = Run(tmp_path, *settings)
    run.until(run.steps, "a step")
    hold.touch()
    run.until(scoring.exists, "an evaluation")
    asked = int(scoring.read_text())
    os.kill(asked, signal.SIGKILL)
    run.until(lambda: scoring.read_text() != str(asked), "the other process")
    hold.unlink()
    run.until((tmp_path / "runs/testing/evaluation/step-00000003.json").exists, "its result")
    scoring.unlink()
    hold.touch()
    run.until(scoring.exists, "another evaluation")
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.communicate()
    psutil.wait_procs(family, 60)
    hold.unlink()
    (tmp_path / GO).touch()

    run = Run(tmp_path, *settings)
    status, out = run.end()
    assert status == 0, out
    assert_whole(run, STEPS)
    evaluations = sorted(path.name for path in run.dir.glob("evaluation/*.json"))
    assert evaluations == ["after.json", "before.json", "step-00000003.json", "step-00000006.json"]
    for path in run.dir.glob("evaluation/*.json"):
        found = json.loads(path.read_text())["sets"]["test"]
        assert found["pass_at_1"]["problems"] == PROBLEMS, path
        assert found["reward_errors"]["value"] == 0, path
    assert run.summary()["evaluation"]["skipped"] == 0


@pytest.mark.ci
def test_a_worker_and_a_reward_process_are_killed_while_a_version_is_published(tmp_path):
    settings = (
        *(plugins("held"), f"steps={STEPS}", "rlax.deterministic=true"),
        "rlax.rewards=[{name: held}]",
        "rlax.evaluation.problems=0",
    )
    store = f"{{name: held, version: {HELD}, written: {WRITTEN}, waits_for: {GO}}}"
    found = []
    for name in ("undisturbed", "killed"):
        directory = tmp_path / name
        directory.mkdir()
        if name == "undisturbed":
            (directory / GO).touch()
        run = Run(directory, *settings, f"rlax.weights.store={store}")
        if name == "killed":
            run.until((directory / WRITTEN).exists, f"version {HELD}")
            family = psutil.Process(run.process.pid).children(recursive=True)
            chosen = [p for p in family if {"serve", REWARDS} & set(command(p))]
            assert len(chosen) >= 2, [command(p) for p in family]
            for one in chosen:
                one.kill()
            psutil.wait_procs(chosen, 60)
            (directory / GO).touch()
        status, out = run.end()
        assert status == 0, out
        assert_whole(run, STEPS)
        found.append(digests(run.dir))
    undisturbed, killed = found
    assert killed == undisturbed and len(killed) == STEPS + 1
