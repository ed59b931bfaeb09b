"""Whole runs of real processes over real gRPC; only the model is a toy, of ``rlax_plugin.testing``.

What is tested is the controller, the fleet, the parameter server, the reward pool and the launcher,
without MaxText's half minute of imports.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from runs import CONFIG, Run, alive


def test_a_run_ends_well_and_says_so(tmp_path):
    learns = ("rlax.trainer.learning_rate=10", "rlax.evaluation.problems=64")
    run = Run(tmp_path, *learns)
    status, out = run.end()
    assert status == 0, out
    summary = run.summary()
    assert summary["steps"] == 10 and summary["complete"]
    assert summary["weight_versions"] == 11  # version 0 and one per step
    assert summary["max_staleness_seen"] == 1
    assert summary["workers_seen"] == 2 and summary["worker_restarts"] == 0
    admitted, filtered = summary["groups_admitted"], summary["groups_filtered"]
    assert admitted == 40 and summary["groups_issued"] == admitted + filtered
    before, after = summary["pass_at_1_before"], summary["pass_at_1_after"]
    assert before["problems"] == 64 and before["n"] == 4
    assert after["value"] > before["value"] + 0.1
    # Trainer and engine compute the same bits from the same weights.
    assert all(m["logprob_gap/mean"] == 0 for m in run.steps())
    assert "pass@1" in out and "metrics.jsonl" in out and "go on training" in out
    rows = run.rollouts()
    assert len(rows) == 4 * summary["groups_issued"]
    assert {r["worker"] for r in rows} == {"local-0", "local-1"}
    trained = [r for r in rows if r["refused"] is None]
    # Lockstep: everything that trains at step s was drawn with version s - 1.
    assert all(set(r["versions"]) == {r["step"] - 1} for r in trained)
    by_id = [r["group_id"] for r in trained]
    assert len(set(by_id)) == 40

    status, again = Run(tmp_path, *learns).end()
    assert status == 0 and again.startswith("the run is complete: 10 steps\n")
    assert "pass@1" in again and "resuming" not in again
    status, other = Run(tmp_path, *learns, "rlax.seed=1").end()
    assert status == 2 and "holds a run of another config" in other


def test_a_killed_worker_costs_only_time(tmp_path):
    run = Run(tmp_path, "rlax.rollouts.engine.latency_s=0.1", "steps=12")
    run.until(lambda: len(run.steps()) >= 2, "two steps")
    run.workers()[0].send_signal(signal.SIGKILL)
    status, out = run.end()
    assert status == 0, out
    summary = run.summary()
    assert summary["steps"] == 12
    assert summary["groups_reissued"] > 0
    assert summary["worker_restarts"] == 1
    again = {r["group_id"] for r in run.rollouts() if r["attempt"] > 1}
    assert again and len(again) <= summary["groups_reissued"]


@pytest.mark.parametrize(
    ("j", "k", "slow"),
    [
        (1, 2, "rlax.trainer.train_s=0.15"),
        (2, 3, "rlax.rollouts.engine.load_s=0.3 steps=9"),  # ends between two reloads
        (1, 4, "rlax.rollouts.engine.latency_s=0.05"),
    ],
)
def test_staleness_never_exceeds_its_bound(tmp_path, j, k, slow):
    run = Run(
        tmp_path,
        f"rlax.staleness.reload_every={j}",
        f"rlax.staleness.max_staleness={k}",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        *slow.split(),
    )
    status, out = run.end()
    assert status == 0, out
    trained = [r for r in run.rollouts() if r["refused"] is None]
    seen = {r["step"] - min(r["versions"]) for r in trained}
    assert max(seen) == run.summary()["max_staleness_seen"] <= k
    assert max(seen) > 1  # the run did go off-policy, so the bound was tested


def test_ctrl_c_leaves_nothing_behind_and_the_run_continues(tmp_path):
    slow = ("rlax.trainer.train_s=0.05", "steps=30")
    run = Run(tmp_path, *slow)
    run.until(lambda: len(run.steps()) >= 7, "seven steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(family) >= 3  # two workers, a reward process
    os.killpg(run.process.pid, signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    assert "continue with:" in out
    assert not alive(family)
    done = run.summary()["steps"]
    assert 7 <= done < 30 and not run.summary()["complete"]

    again = Run(tmp_path, *slow)
    status, out = again.end()
    assert status == 0, out
    assert f"resuming after step {done}" in out
    steps = [m["step"] for m in again.steps()]
    assert steps == list(range(1, 31))
    issued = [r["group_id"] for r in again.rollouts() if r["refused"] is None]
    assert set(Counter(issued).values()) == {4} and len(set(issued)) == 120  # none trained twice


def test_a_second_signal_and_a_dead_trainer_end_the_workers_too(tmp_path):
    run = Run(tmp_path, "rlax.trainer.train_s=0.05", "steps=500")
    run.until(lambda: len(run.steps()) >= 2, "two steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait(10)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


@pytest.mark.parametrize("phase", ["start-up", "evaluation"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
    assert not alive(family)
    assert not list(run.dir.glob("evaluation/*"))


def test_a_killed_run_continues_with_each_step_once(tmp_path):
    slow = "rlax.trainer.train_s=0.05"
    run = Run(tmp_path, slow, "steps=1000")
    run.until(lambda: len(run.steps()) >= 8, "eight steps")
    run.process.kill()
    run.process.wait(10)
    seen = len(run.steps())
    steps = range(1, seen + 5)
    again = Run(tmp_path, slow, f"steps={steps[-1]}")
    status, out = again.end()
    assert status == 0, out
    resumed = int(re.search(r"resuming after step (\d+)", out).group(1))
    # A step is committed by its checkpoint, which precedes its line in metrics.jsonl.
    assert resumed % 5 == 0 and seen - 10 <= resumed <= seen + 1
    assert [m["step"] for m in again.steps()] == list(steps)
    trained = Counter(r["step"] for r in again.rollouts() if r["refused"] is None)
    assert trained == dict.fromkeys(steps, 16)
    assert len(list((again.dir / "weights").iterdir())) <= 3  # nothing of the killed process
    assert again.summary()["steps"] == steps[-1]
    assert again.summary()["groups_admitted"] == 4 * steps[-1]


def test_workers_that_cannot_start_end_the_run_with_their_reason(tmp_path):
    run = Run(tmp_path, "rlax.rollouts.engine.broken=true", "rlax.launcher.max_restarts=1")
    status, out = run.end()
    assert status == 1
    assert "ended 2 times in a row" in out and "this engine is broken" in out and "local-" in out


def test_failures_end_the_run_with_their_own_message(tmp_path):
    run = Run(tmp_path, "rlax.trainer.fail_at=3")
    status, out = run.end()
    assert status == 1
    assert "the trainer broke" in out
    assert not run.workers()


def test_rewards_that_hang_or_raise_never_stop_a_run(tmp_path):
    run = Run(
        tmp_path,
        "rlax.rewards=[{name: even, hang_on: '3', raise_on: '5'}]",
        "rlax.deadlines.reward_s=1.5",
        "steps=16",
    )
    status, out = run.end()
    assert status == 0, out
    errors = {}
    for row in run.rollouts():
        if row["reward_error"]:
            errors.setdefault(row["prompt"], set()).add(row["reward_error"])
            assert row["reward"] is None and row["advantage"] is None
    assert {"3", "5"} <= set(errors)  # whatever else a stall of the machine may have cost
    assert any("rlax.deadlines.reward_s" in e for e in errors["3"])
    assert any("cannot judge this" in e for e in errors["5"])
    assert run.summary()["reward_errors"] >= 8


def test_prompts_that_are_too_long_are_refused_before_anything_is_drawn(tmp_path):
    status, out = Run(
        tmp_path, "rlax.rollouts.max_prompt_tokens=1", "rlax.evaluation.problems=0"
    ).end()
    assert status == 2
    assert "rlax.rollouts.max_prompt_tokens = 1: must be at least 2" in out


def test_static_workers_join_late_and_drain_on_sigterm(tmp_path):
    run = Run(tmp_path, "rlax.launcher.name=static", "rlax.network.port=0", "steps=40",
              "rlax.trainer.train_s=0.05")  # fmt: skip
    log = run.dir / "logs/trainer.log"
    run.until(lambda: log.exists() and "register with" in log.read_text(), "the address")
    address = log.read_text().split("register with ")[1].split()[0]

    def worker(name: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "rlax_plugin", "serve", CONFIG, *run.process.args[5:]]
        command += ["--controller", address, "--name", name]
        out = (tmp_path / f"{name}.log").open("w")
        return subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out)

    first = worker("early")
    run.until(lambda: len(run.steps()) >= 3, "three steps")
    second = worker("late")
    run.until(
        lambda: any(m["rollout/workers"] == 2 for m in run.steps()), "the late worker at work"
    )
    first.terminate()
    assert first.wait(20) == 0, (tmp_path / "early.log").read_text()
    status, out = run.end()
    assert status == 0, out
    assert second.wait(20) == 0, (tmp_path / "late.log").read_text()
    assert {r["worker"] for r in run.rollouts()} == {"early", "late"}
    assert run.summary()["groups_reissued"] == 0  # draining finishes what was begun
