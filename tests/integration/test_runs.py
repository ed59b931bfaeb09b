"""Whole runs of real processes over real gRPC; only the model is a toy, of ``rlax_plugin.testing``.

What is tested is the controller, the fleet, the parameter server, the reward pool and the launcher,
without MaxText's half minute of imports.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest
from finished_run import SETTINGS
from processes import python_path
from runs import DEADLINE_S, HELPERS, TWO_WORKERS, Run, alive, plugins, process
from waiting import wait_until

FAULTY = plugins("faulty_parts")


def test_a_run_ends_well_and_says_so(finished_run, tmp_path):
    run, out = finished_run.copied_to(tmp_path), finished_run.said
    summary = run.summary()
    assert summary["steps"] == 20 and summary["complete"]
    assert summary["weight_versions"] == 21  # version 0 and one per step
    assert summary["max_staleness_seen"] == 1
    assert 1 <= summary["workers_seen"] <= 2 and summary["worker_restarts"] == 0
    accepted, rejected = summary["groups_accepted"], summary["groups_rejected"]
    assert accepted == 80 and summary["groups_issued"] == accepted + rejected
    before, after = summary["pass_at_1_before"], summary["pass_at_1_after"]
    assert before["problems"] == 32 and before["n"] == 4
    assert after["value"] > before["value"] + 0.1
    # Trainer and engine compute the same bits from the same weights.
    assert all(m["logprob_gap/mean"] == 0 for m in run.steps())
    assert "pass@1" in out and "metrics.jsonl" in out and "continue training" in out
    rows = run.samples()
    assert len(rows) == 4 * summary["groups_issued"]
    assert {name for r in rows for name in r["workers"]} <= {"local-0", "local-1"}
    trained = [r for r in rows if r["rejected"] is None]
    # Lockstep: everything that trains at step s was generated with version s - 1.
    assert all(set(r["versions"]) == {r["step"] - 1} for r in trained)
    by_id = [r["group"] for r in trained]
    assert len(set(by_id)) == 80

    status, again = Run(tmp_path, *SETTINGS).end()
    assert status == 0 and again.splitlines()[1] == "the run is complete: 20 steps"
    assert "pass@1" in again and "resuming" not in again
    status, fewer = Run(tmp_path, *SETTINGS, "steps=5").end()
    assert status == 0
    assert fewer.splitlines()[1].startswith("steps = 5 is less than the 20 RL steps that ")
    status, other = Run(tmp_path, *SETTINGS, "rlax.seed=1").end()
    assert status == 2 and "holds a run of another config" in other


def test_a_killed_worker_costs_only_time(tmp_path):
    # So slow that either of them has groups at nearly any moment.
    run = Run(tmp_path, TWO_WORKERS, "rlax.rollouts.engine.latency_s=0.3", "steps=1000")
    run.until(lambda: any(m["rollout/workers"] == 2 for m in run.steps()), "two workers")
    run.until(run.workers, "a worker")[0].send_signal(signal.SIGKILL)
    enough = len(run.steps()) + 6
    run.until(lambda: len(run.steps()) >= enough, "six more steps")
    run.until(lambda: len(run.workers()) == 2, "another worker")
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    summary = run.summary()
    assert summary["steps"] >= enough
    assert summary["groups_reissued"] > 0
    assert summary["worker_restarts"] == 1
    again = {r["group"] for r in run.samples() if r["attempt"] > 1}
    assert again and len(again) <= summary["groups_reissued"]


def test_staleness_never_exceeds_its_bound(tmp_path):
    k = 3
    run = Run(
        tmp_path,
        "rlax.staleness.reload_every=2",
        f"rlax.staleness.max_staleness={k}",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "rlax.rollouts.engine.load_s=0.3",
        "steps=9",  # ends between two reloads
    )
    status, out = run.end()
    assert status == 0, out
    trained = [r for r in run.samples() if r["rejected"] is None]
    seen = {r["step"] - min(r["versions"]) for r in trained}
    assert max(seen) == run.summary()["max_staleness_seen"] <= k
    assert max(seen) > 1  # the run did go off-policy, so the bound was tested


@pytest.mark.parametrize(
    ("phase", "number"), [("start-up", signal.SIGTERM), ("evaluation", signal.SIGINT)]
)
def test_a_signal_before_training_ends_the_run_at_once(tmp_path, phase, number):
    run = Run(tmp_path, "rlax.rollouts.engine.latency_s=15")

    def a_worker_has(said: str) -> bool:
        return any(said in log.read_text() for log in run.dir.glob("logs/local-*.log"))

    if phase == "start-up":
        run.until(lambda: a_worker_has(""), "the start of a worker")
    else:
        run.until(lambda: a_worker_has("serving version 0"), "the first weights")
    family = psutil.Process(run.process.pid).children(recursive=True)
    os.kill(run.process.pid, number)
    status, out = run.end()
    assert status == 130, out
    assert re.search(r"continue with:  \S*rlax train", out) and "Traceback" not in out
    wait_until(lambda: not alive(family), "the end of its processes")
    assert not list(run.dir.glob("evaluation/*"))


def test_a_run_goes_on_after_a_kill_and_after_ctrl_c_with_each_step_once(tmp_path):
    slow = "rlax.trainer.train_s=0.05"
    run = Run(tmp_path, slow, "steps=1000")
    run.until(lambda: len(run.steps()) >= 8, "eight steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait(DEADLINE_S)
    _, left = psutil.wait_procs(family, timeout=DEADLINE_S)
    assert len(family) >= 2 and not left  # nothing outlives a trainer that is dead
    seen = len(run.steps())

    run = Run(tmp_path, slow, "steps=1000")
    run.until(lambda: len(run.steps()) >= seen + 2, "two more steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(family) >= 2  # a worker, a reward process
    os.killpg(run.process.pid, signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    assert "continue with:" in out
    wait_until(lambda: not alive(family), "the end of its processes")
    resumed = int(re.search(r"resuming after step (\d+)", out).group(1))
    # A step is committed by its checkpoint, which precedes its line in metrics.jsonl.
    assert resumed % 5 == 0 and seen - 10 <= resumed <= seen + 1
    done = run.summary()["steps"]
    assert seen + 2 <= done < 1000 and not run.summary()["complete"]

    steps = range(1, done + 6)
    run = Run(tmp_path, slow, f"steps={steps[-1]}")
    status, out = run.end()
    assert status == 0, out
    assert f"resuming after step {done}" in out
    assert [m["step"] for m in run.steps()] == list(steps)
    trained = [r for r in run.samples() if r["rejected"] is None]
    assert Counter(r["step"] for r in trained) == dict.fromkeys(steps, 16)
    assert set(Counter(r["group"] for r in trained).values()) == {4}  # none trained twice
    assert len(list((run.dir / "weights").iterdir())) <= 3  # nothing of the killed process
    assert run.summary()["steps"] == steps[-1]
    assert run.summary()["groups_accepted"] == 4 * steps[-1]


def test_workers_that_cannot_start_end_the_run_with_their_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    run = Run(
        tmp_path,
        FAULTY,
        "rlax.rollouts.engine={name: faulty, broken: true}",
        "rlax.launcher.max_restarts=1",
    )
    status, out = run.end()
    assert status == 1
    assert "ended 2 times in a row" in out and "this engine is broken" in out and "local-" in out


def test_failures_end_the_run_with_their_own_message(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    run = Run(tmp_path, FAULTY, "rlax.trainer={name: faulty, fail_at: 3}")
    status, out = run.end()
    assert status == 1
    assert "the trainer broke" in out
    assert not run.workers()


QUITS = """
import sys

from rlax_plugin.api import BatchSignal, Extension, NoOptions, hookimpl


class Quits(BatchSignal):
    def learn(self, model, step, batch):
        sys.exit()


@hookimpl
def rlax_register_signal():
    return {"quits": Extension(NoOptions, lambda config, context: Quits())}
"""


def test_a_plugin_that_ends_the_process_is_an_error_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "quits.py").write_text(QUITS)
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    run = Run(tmp_path, plugins("quits"), "rlax.signals=[{name: quits}]")
    status, out = run.end()
    assert status == 1
    assert "error: the trainer, or a signal or library that it called, ended with sys.exit(" in out
    assert not run.workers()


def test_a_gap_beyond_its_limit_ends_the_run_which_goes_on_where_it_is_lifted(tmp_path):
    # Trainer and engine agree to the last bit, which the histogram reports as at most 1e-8 nats.
    often = "rlax.trainer={name: bigram, checkpoint_every: 2}"
    limits = ("rlax.objective.max_gap=1e-9", often)
    status, out = (run := Run(tmp_path, *limits, "steps=12")).end()
    assert status == 1
    gaps = ", ".join(["1e-08"] * 3)
    said = f"logprob_gap/p95 was {gaps} nats in the last 3 steps that measured it, above"
    assert f"{said} rlax.objective.max_gap = 1e-09" in out
    assert 3 <= len(run.steps()) < 12 and not run.workers()

    # The two steps before the checkpoint count again, so one more is enough.
    status, out = (run := Run(tmp_path, *limits, "steps=12")).end()
    assert status == 1 and "resuming after step" in out and said in out
    assert 3 <= len(run.steps()) < 12

    status, out = (run := Run(tmp_path, "rlax.objective.max_gap=1e-7", often, "steps=12")).end()
    assert status == 0 and "resuming after step" in out, out
    assert [m["step"] for m in run.steps()] == list(range(1, 13))
    trained = Counter(row["step"] for row in run.trained())
    assert trained == dict.fromkeys(range(1, 13), 16)


def test_static_workers_join_late_and_drain_on_sigterm(tmp_path):
    settings = ("rlax.launcher.name=static", "rlax.network.port=0", "rlax.trainer.train_s=0.05")
    run = Run(tmp_path, *settings, "steps=1000")
    log = run.dir / "logs/trainer.log"
    address = run.until(
        lambda: log.exists() and re.search(r"register with (\S+)\s", log.read_text()), "the address"
    )[1]

    def more(steps: int) -> None:
        enough = len(run.steps()) + steps
        run.until(lambda: len(run.steps()) >= enough, f"{steps} more steps")

    with ExitStack() as processes:

        def worker(name: str) -> subprocess.Popen[bytes]:
            serve = ("serve", *settings, "--controller", address, "--name", name)
            return processes.enter_context(process(tmp_path, name, *serve))

        first = worker("early")
        more(3)
        second = worker("late")
        run.until(
            lambda: any(m["rollout/workers"] == 2 for m in run.steps()), "the late worker at work"
        )
        first.terminate()
        assert first.wait(DEADLINE_S) == 0, (tmp_path / "early.log").read_text()
        more(2)
        run.process.send_signal(signal.SIGINT)
        status, out = run.end()
        assert status == 130, out
        assert second.wait(DEADLINE_S) == 0, (tmp_path / "late.log").read_text()
    assert {name for r in run.samples() for name in r["workers"]} == {"early", "late"}
    assert run.summary()["groups_reissued"] == 0  # draining finishes what was begun
