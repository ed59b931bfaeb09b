"""A worker process that was frozen, and started again elsewhere before it came back."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from runs import CONFIG, DEADLINE_S, Run, free_port, process

from rlax_plugin.commands.audit import audit
from rlax_plugin.commands.status.source import seen_here
from rlax_plugin.records.files import RunFiles


def test_a_frozen_worker_that_comes_back_is_told_to_end(tmp_path):
    settings = (
        "steps=4000",
        "rlax.launcher={name: static}",
        "rlax.evaluation.problems=0",
        "rlax.rollouts.engine.token_s=0.01",
        # A frozen worker counts as lost after 300 s: its successor has the time to start.
        "rlax.deadlines.heartbeats_lost=1000",
        f"rlax.network.port={(port := free_port())}",
    )
    serve = ("serve", CONFIG, *settings, "--controller", f"127.0.0.1:{port}", "--name", "one")
    training = Run(tmp_path, *settings)

    def another(steps: int) -> None:
        before = len(training.steps())
        training.until(lambda: len(training.steps()) >= before + steps, f"{steps} more steps")

    with ExitStack() as processes:
        processes.callback(training.process.kill)
        old = processes.enter_context(process(tmp_path, "old", *serve, "--incarnation", "1"))
        another(2)
        old.send_signal(signal.SIGSTOP)
        new = processes.enter_context(process(tmp_path, "new", *serve, "--incarnation", "2"))
        another(2)
        old.send_signal(signal.SIGCONT)
        assert old.wait(DEADLINE_S) == 1
        said = (tmp_path / "old.log").read_text().strip().splitlines()[-1]
        assert "worker one was started again since: this process has incarnation 1" in said, said
        another(2)
        assert new.poll() is None
        training.process.send_signal(signal.SIGINT)
        status, out = training.end()
    assert status == 130 and out.count("worker one lost: was started again") == 1, out
    assert seen_here(training.dir).outcome == "interrupted"
    assert audit(RunFiles(training.dir)).violation is None
