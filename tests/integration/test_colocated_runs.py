"""A run whose worker is in the trainer's process: others join it, and its engine may fail."""

import os
import signal

import pytest
from runs import HELPERS, Run, plugins, process

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

COLOCATED = "rlax.launcher={name: colocated}"


def test_workers_join_a_colocated_run_and_one_is_killed(tmp_path):
    run = Run(
        *(tmp_path, COLOCATED, "steps=5000", "rlax.rollouts.engine.reads_memory=true"),
        *("rlax.rollouts.engine.token_s=0.02", "rlax.evaluation.problems=0"),
    )
    secret = run.dir / "worker-token.json"
    run.until(lambda: len(run.steps()) >= 2, "two steps alone")
    run.until(lambda: any("machine/trainer_memory_bytes" in one for one in run.steps()), "figures")
    assert not any("machine/workers_memory_bytes" in step for step in run.steps())
    written = len(list((run.dir / "weights").iterdir()))
    assert written == 1  # that of its start: the others were used as they are
    controller = RunFiles(run.dir).get_json("endpoints.json")["controller"]
    join = ("serve", "--controller", controller, "--token-file", str(secret), "--name")
    with (
        process(tmp_path, "one", *join, "one") as one,
        process(tmp_path, "other", *join, "other") as other,
    ):
        run.until(lambda: {"one", "other"} <= trainers_of(run), "batches with samples of both")
        one.send_signal(signal.SIGKILL)
        steps = len(run.steps())
        run.until(lambda: len(run.steps()) >= steps + 5, "five steps without it")
        run.process.send_signal(signal.SIGINT)
        status, out = run.end()
        assert status == 130 and "interrupted after step" in out, out
        assert other.wait(60) == 0
    assert "colocated" in trainers_of(run)
    assert any("machine/workers_memory_bytes" in step for step in run.steps())
    report = audit(RunFiles(run.dir))
    assert report.violation is None, report.violation
    assert max(m["staleness/max"] for m in run.steps()) == 1


def trainers_of(run: Run) -> set[str]:
    return {name for row in run.trained() for name in row["workers"]}


@pytest.mark.parametrize(
    "engine, variable, words",
    [
        ("dying", "DIES_AT", "out of memory on device 0"),
        ("hanging", "HANGS_AT", "a call of the rollout engine, which has the devices, took longer"),
    ],
)
def test_an_engine_that_fails_ends_the_run_with_its_words_and_the_run_is_continued(
    tmp_path, monkeypatch, engine, variable, words
):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    monkeypatch.setenv(variable, "2")
    settings = (
        *("steps=4", plugins("faulty_parts"), "rlax.evaluation.problems=0", COLOCATED),
        *(f"rlax.rollouts.engine.name={engine}", "rlax.trainer.checkpoint_every=1"),
        "rlax.deadlines.group_s=2",
    )
    run = Run(tmp_path, *settings)
    status, out = run.end()
    assert status == 1 and words in out, out
    assert 2 <= len(run.steps()) < 4
    monkeypatch.delenv(variable)
    again = Run(tmp_path, *settings)
    status, out = again.end()
    assert status == 0, out
    assert [metrics["step"] for metrics in again.steps()] == [1, 2, 3, 4]
    assert audit(RunFiles(run.dir)).violation is None


def test_an_evaluation_during_training_is_said_to_be_skipped_and_the_last_is_made_afterwards(
    tmp_path,
):
    run = Run(
        *(tmp_path, COLOCATED, "steps=6", "rlax.rollouts.engine.reads_memory=true"),
        "rlax.evaluation.every=2",
    )
    status, out = run.end()
    assert status == 0, out
    assert "evaluation of step 2 is skipped: no second worker was ready" in out
    assert "evaluation of step 4:" in out
    assert run.summary()["evaluation"]["skipped"] == 1
