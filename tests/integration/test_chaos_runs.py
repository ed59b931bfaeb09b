"""Runs in which environments, rewards, workers and the parameter server fail at random.

A seed decides what a run has (several turns or screening, packing, batches of tokens, a parameter
server of its own) and what is done to it when. Every run must end as runs end: complete, with
records that agree, without a distrusted worker and without a process that is left over.

``RLAX_TEST_CHAOS_SEEDS`` is the number of seeds.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
import uuid
from pathlib import Path

import psutil
import pytest
from processes import python_path
from runs import CONFIG, HELPERS, Run, alive, free_port, plugins, process
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

SEEDS = int(os.environ.get("RLAX_TEST_CHAOS_SEEDS", "6"))
STEPS = 8
AWAY_S = 0.5  # until a parameter server that was killed is started again
MARK = "RLAX_TEST_CHAOS_RUN"
# Why a worker is lost that is not at fault. Any other reason is an answer that was not believed.
LOST = re.compile(r"left|no heartbeat for|UNAVAILABLE|CANCELLED")
SETTINGS = (
    plugins("fickle"),
    f"steps={STEPS}",
    "rlax.trainer={name: bigram, checkpoint_every: 3, learning_rate: 0.1}",
    "rlax.reward_processes=2",
    "rlax.curation.max_refill=50",
    "rlax.rollouts.on_new_weights=continue",
    "rlax.rollouts.progress_s=0.1",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
    "rlax.launcher={name: local, workers: 3, max_restarts: 100}",
    # Shorter than elsewhere: hangs are to be waited out often. What is late by itself on a slow
    # machine costs a sample its reward and nothing else.
    "rlax.deadlines={reward_s: 1.5, episode_s: 1.5, drain_s: 5, lease_s: 3}",
)


class Plan:
    """What a run has and what is done to it, all of it by the seed."""

    def __init__(self, seed: int, directory: Path):
        chance = self.chance = random.Random(seed)
        self.has: list[str] = []
        overrides = [f"rlax.seed={seed}", f"rlax.staleness.max_staleness={chance.randrange(1, 4)}"]
        if self._draws("several turns"):
            overrides += [
                f"rlax.environment={{name: fickle, seed: {seed}, share: 0.03}}",
                "rlax.episodes={max_turns: 3, max_tokens: 24}",
            ]
        else:
            overrides.append(f"rlax.rewards=[{{name: fickle, seed: {seed}, share: 0.03}}]")
            if self._draws("screening"):
                overrides.append("rlax.curation.screening={pilots: 2, min_mixed_probability: 0.2}")
        if self._draws("packing"):
            overrides += ["rlax.batches.rows=16", "rlax.batches.sequences_per_row=4"]
            if self._draws("batches of tokens"):
                overrides.append("rlax.batches.tokens=60")
        if self._draws("oversampling"):
            overrides.append("rlax.curation.oversample=2")
        if self._draws("evaluations"):
            overrides.append("rlax.evaluation.every=3")
        self.server: tuple[str, ...] = ()
        if self._draws("a parameter server of its own"):
            port = free_port()
            self.server = (
                *("parameter-server", CONFIG, "--port", str(port), "rlax.deadlines.lease_s=3"),
                *("--index", str(directory / "index")),
            )
            overrides.append(f"rlax.weights.parameter_server=127.0.0.1:{port}")
        latency_s, token_s = chance.uniform(0.02, 0.2), chance.uniform(0.01, 0.05)
        overrides.append(
            "rlax.rollouts.engine={name: scripted, "
            f"latency_s: {latency_s:.3f}, token_s: {token_s:.3f}}}"
        )
        self.overrides = tuple(overrides)

    def _draws(self, what: str) -> bool:
        if drawn := self.chance.random() < 0.5:
            self.has.append(what)
        return drawn


def mine(mark: str) -> list[psutil.Process]:
    """Every process that has the mark in its environment."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == mark and one.pid != os.getpid():
                found.append(one)
    return alive(found)


def disturbed(run: Run, plan: Plan, directory: Path) -> tuple[int, str]:
    """How a run ends whose workers are preempted and whose parameter server is killed at random.

    Not more often than a machine can start them again, or the run would never end.
    """

    def ended_after(seconds: float) -> bool:
        end_s = time.monotonic() + seconds
        run.until(lambda: run.process.poll() is not None or time.monotonic() >= end_s, "time")
        return run.process.poll() is not None

    with contextlib.ExitStack() as stack:
        servers = 0

        def serve() -> None:
            nonlocal servers
            servers += 1
            stack.enter_context(process(directory, f"server-{servers}", *plan.server))

        if plan.server:
            serve()
        for _ in range(plan.chance.randrange(3, 8)):
            if ended_after(plan.chance.uniform(0.5, 3.0)):
                break
            if plan.server and plan.chance.random() < 0.4:
                stack.close()  # kills it
                ended_after(AWAY_S)
                serve()
            elif workers := run.workers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    plan.chance.choice(workers).send_signal(signal.SIGTERM)
        return run.end()


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.long if s else pytest.mark.ci) for s in range(SEEDS)]
)
def test_a_run_of_failures_ends_like_any_other(seed, tmp_path, monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("PYTHONPATH", python_path(HELPERS))
    monkeypatch.setenv(MARK, mark)
    plan = Plan(seed, tmp_path)
    run = Run(tmp_path, *SETTINGS, *plan.overrides)
    status, out = disturbed(run, plan, tmp_path)
    assert status == 0, f"{plan.has}: {out}"
    said = out + "".join(log.read_text() for log in run.dir.glob("logs/*.log"))
    for word in ("quarantined", "was not asked to"):
        assert word not in said, f"{plan.has}: {word!r} in {said}"
    reasons = re.findall(r"worker \S+ lost: (.*)", out)
    assert all(LOST.match(reason) for reason in reasons), f"{plan.has}: {reasons}"
    assert [step["step"] for step in run.steps()] == list(range(1, STEPS + 1)), plan.has
    summary = run.summary()
    assert summary["complete"] and summary["trainer_restarts"] == 0
    report = audit(RunFiles(run.dir))
    assert report.clean, f"{plan.has}: {report.violation}"
    wait_until(lambda: not mine(mark), f"the end of all processes ({plan.has})")
    print(
        f"seed {seed}: {', '.join(plan.has)}; {summary['worker_restarts']} workers preempted, "
        f"{summary['groups_reissued']} groups issued again, {summary['reward_errors']} errors of "
        f"rewards, {summary['wall_s']:.0f} s"
    )
