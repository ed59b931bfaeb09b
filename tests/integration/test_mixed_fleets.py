"""Workers that differ, and that know no more of the run than where its controller listens."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import command_line
import processes
import pytest
from runs import DEADLINE_S, Run, free_port

STATIC = (
    "rlax.launcher={name: static}",
    "rlax.evaluation.problems=0",
    "rlax.trainer.learning_rate=1e-6",  # or the task would become too easy for its filter
)


class Fleet:
    """A run without workers of its own, and workers that are started in an empty directory."""

    def __init__(self, directory: Path, stack: ExitStack, *settings: str):
        self.address = f"127.0.0.1:{(port := free_port())}"
        self.run = Run(directory, *STATIC, *settings, f"rlax.network.port={port}")
        self._stack, self._logs = stack, directory
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()

    def worker(self, name: str, *local: str) -> subprocess.Popen[bytes]:
        serve = ("serve", "--controller", self.address, "--name", name, *local)
        log = self._logs / f"{name}.log"
        return self._stack.enter_context(processes.process(log, *serve, cwd=self.elsewhere))

    def rejected(self, name: str, *local: str) -> str:
        """The last line of a worker that cannot join."""
        assert self.worker(name, *local).wait(DEADLINE_S) == 2
        return (self._logs / f"{name}.log").read_text().splitlines()[-1]

    def generated(self) -> dict[str, int]:
        """Worker -> groups that trained."""
        rows = self.run.trained()
        groups = {(name, row["group"]) for row in rows for name in row["workers"]}
        return {name: sum(one == name for one, _ in groups) for name, _ in groups}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    Run.end_all()


def test_a_slow_worker_shows_its_speed_before_it_gets_a_group(tmp_path, stack):
    fleet = Fleet(
        tmp_path, stack, "steps=4000", "rlax.rollouts.groups_per_step=2",
        "rlax.rollouts.engine.token_s=0.01", "rlax.staleness.max_staleness=1",
    )  # fmt: skip
    slow = fleet.worker("slow", "rlax.rollouts.engine.token_s=0.3")
    plain = fleet.worker("plain")
    serves = lambda: "serving version" in (tmp_path / "slow.log").read_text()  # noqa: E731
    fleet.run.until(serves, "the slow worker with weights")
    steps = len(fleet.run.steps()) + 20
    fleet.run.until(lambda: len(fleet.run.steps()) >= steps, "twenty steps more")
    fleet.run.process.send_signal(signal.SIGINT)
    status, out = fleet.run.end()
    assert status == 130, out
    # All that a step needs fits into the other worker's slots, and ends there sooner.
    assert fleet.generated().keys() == {"plain"}
    assert (slow.wait(DEADLINE_S), plain.wait(DEADLINE_S)) == (0, 0)


def test_workers_with_other_engines_and_slots_join_a_running_fleet(tmp_path, stack):
    fleet = Fleet(tmp_path, stack, "steps=4000", "rlax.rollouts.engine.token_s=0.01")
    plain = fleet.worker("plain")
    fleet.run.until(fleet.run.steps, "a step")
    half = fleet.worker("half", "rlax.rollouts.slots=8")
    # Its own option of the engine stands beside the run's, which is slow.
    unseeded = fleet.worker("unseeded", "rlax.rollouts.engine.seeded=false")

    lacking = fleet.rejected("blind", "rlax.rollouts.engine.logprobs=false")
    assert lacking == (
        "error: rlax.rollouts.engine = 'scripted': cannot generate for this run: its engine gives "
        "no log-probs, which training needs"
    )
    other = fleet.rejected("other", "rlax.rollouts.group_size=2")
    assert other.startswith(
        "error: rlax.rollouts.group_size = 2: is 4 in the run that this worker joins: leave it out"
    )
    wrong = fleet.rejected("wrong", "rlax.rollouts.slot=2")
    assert "rlax.rollouts.slot = 2: unknown key; did you mean 'slots'?" in wrong

    names = {"plain", "half", "unseeded"}
    enough = lambda: names <= (found := fleet.generated()).keys() and min(found.values()) >= 3  # noqa: E731
    fleet.run.until(enough, f"three groups of each of {sorted(names)}")
    fleet.run.process.send_signal(signal.SIGINT)
    status, out = fleet.run.end()
    assert status == 130, out
    for worker in (plain, half, unseeded):
        assert worker.wait(DEADLINE_S) == 0
    assert fleet.generated().keys() == names and not list(fleet.elsewhere.iterdir())
    assert out.count("worker blind was rejected: its engine gives no log-probs") == 1
    audited = command_line.rlax("audit", str(fleet.run.dir))
    assert audited.exit_code == 0, audited.output
