"""A run whose worker is in the trainer's process: others join it, and its engine may fail."""

import signal

from command_line import rlax
from runs import Run, plugins, process
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

COLOCATED = "rlax.launcher={name: colocated}"


def test_workers_join_a_colocated_run_and_one_is_killed(tmp_path):
    run = Run(
        *(tmp_path, COLOCATED, "steps=40", "rlax.rollouts.engine.reads_memory=true"),
        *("rlax.rollouts.engine.token_s=0.02", "rlax.evaluation.problems=0"),
    )
    secret = run.dir / "worker-token.json"
    run.until(lambda: len(run.steps()) >= 2, "two steps alone")
    written = len(list((run.dir / "weights").iterdir()))
    assert written == 1  # that of its start: the others were used as they are
    said = run.until(lambda: (run.dir / "logs/trainer.log").read_text(), "a log")
    assert "further" not in said
    controller = RunFiles(run.dir).get_json("endpoints.json")["controller"]
    join = ("serve", "--controller", controller, "--token-file", str(secret), "--name")
    with (
        process(tmp_path, "one", *join, "one") as one,
        process(tmp_path, "other", *join, "other") as other,
    ):
        run.until(lambda: {"one", "other"} <= trainers_of(run), "batches with samples of both")
        one.send_signal(signal.SIGKILL)
        status, out = run.end()
        assert status == 0, out
        assert other.wait(60) == 0
    assert "colocated" in trainers_of(run)
    report = audit(RunFiles(run.dir))
    assert report.violation is None, report.violation
    assert max(m["staleness/max"] for m in run.steps()) == 1


def trainers_of(run: Run) -> set[str]:
    return {name for row in run.trained() for name in row["workers"]}


def test_an_engine_that_fails_ends_the_run_with_its_words_and_the_run_goes_on(tmp_path):
    failing = (COLOCATED, "steps=4", plugins("failing_engine"), "rlax.evaluation.problems=0")
    run = Run(tmp_path, *failing, "rlax.rollouts.engine={name: failing, after: 2}")
    status, out = run.end()
    assert status == 1 and "out of memory on device 0" in out
    assert len(run.steps()) == 2
    assert rlax("audit", str(run.dir)).exit_code == 0
    wait_until(lambda: run.process.poll() is not None)
