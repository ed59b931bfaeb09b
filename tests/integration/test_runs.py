"""Whole runs of real processes over real gRPC; only the model is a toy, of ``rlax_plugin.testing``.

What is tested is the controller, the fleet, the parameter server, the reward pool and the launcher,
without MaxText's half minute of imports.
"""

import json
import os
import re
import signal
from collections import Counter

import psutil
import pytest
from finished_run import SETTINGS
from processes import python_path
from runs import DEADLINE_S, Run, alive, plugins
from waiting import wait_until


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
    phases = ("reading the prompts", "waiting for the first worker", "generating the first batch")
    begun = [out.index(f"\n{phase}") for phase in phases]
    assert begun == sorted(begun) and "\x1b" not in out  # it was shown in a pipe
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


def test_a_run_of_no_steps_publishes_and_measures_its_first_weights(tmp_path):
    """As one does that is only trained by demonstrations."""
    run = Run(tmp_path, "steps=0")
    status, out = run.end()
    summary = run.summary()
    assert status == 0, out
    assert summary["complete"] and summary["steps"] == 0 and summary["weight_versions"] == 1
    assert "verdict" not in summary
    assert summary["pass_at_1_before"]["value"] == summary["pass_at_1_after"]["value"]
    assert " steps=1" in next(line for line in out.splitlines() if "continue training" in line)
    assert list(json.loads((run.dir / "versions.json").read_text()))
    status, again = Run(tmp_path, "steps=2").end()
    assert status == 0 and run.summary()["steps"] == 2, again


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        pytest.param("start-up", signal.SIGTERM, marks=pytest.mark.long),
        ("evaluation", signal.SIGINT),
    ],
)
def test_a_signal_before_training_ends_the_run_at_once(tmp_path, phase, number):
    """Signals reach the processes of a group, and all of them must end."""
    # A worker that loads weights tries itself, which takes this latency twice; the problems take it
    # eight times, one after the other.
    long = ("rlax.rollouts.engine.latency_s=5", "rlax.evaluation.problems=32")
    run = Run(tmp_path, *long, "rlax.deadlines.drain_s=1")

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
    slow = ("rlax.trainer.train_s=0.05", "rlax.observers=[{name: tally}]")
    run = Run(tmp_path, *slow, "steps=1000")
    run.until(lambda: len(run.steps()) >= 8, "eight steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait(DEADLINE_S)
    _, left = psutil.wait_procs(family, timeout=DEADLINE_S)
    assert len(family) >= 2 and not left  # nothing outlives a trainer that is dead
    seen = len(run.steps())

    run = Run(tmp_path, *slow, "steps=1000")
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
    run = Run(tmp_path, *slow, f"steps={steps[-1]}")
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
    counted = json.loads((run.dir / "tally.json").read_text())
    assert counted["step"] == counted["counts"]["steps"] == steps[-1]
    assert counted["counts"]["accepted"] == 4 * steps[-1]


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


def test_a_gap_beyond_its_limit_ends_a_run_and_earlier_steps_count_again(finished_run, tmp_path):
    # Both agree to the last bit, which the histogram reports as at most 1e-8 nats.
    finished_run.copied_to(tmp_path)
    run = Run(tmp_path, *SETTINGS, "steps=24", "rlax.objective.max_gap=1e-9")
    status, out = run.end()
    assert status == 1 and "resuming after step 20" in out, out
    assert "in the last 3 steps that measured it, above rlax.objective.max_gap = 1e-09" in out
    assert len(run.steps()) == 21 and not run.workers()  # two steps before the resume count
