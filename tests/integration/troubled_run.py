"""A run with two workers, one of them behind proxies, whose troubles the doctor is to name."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from proxied import FarWorker, far_worker
from runs import HELPERS, Run, free_port, kill_group, plugins
from small_disks import small_disk
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.status_file import last_status
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.tools.commands.doctor.evidence import gather
from rlax_plugin.tools.commands.doctor.findings import Finding, findings

LOOK_S, LIMIT_S = 0.2, 50.0
TESTS = Path(HELPERS).parent
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def other_clock(ahead_s: float) -> dict[str, str]:
    """Environment variables of a process whose clock, and no other, is ahead."""
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME": f"{ahead_s:+g}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class Troubled:
    """The run, its workers ``local-0`` and ``far``, and its disk."""

    def __init__(self, directory: Path, *, disk: Path, small: bool):
        self.directory, self.disk, self.small = directory, disk, small
        self.told = directory / "told"
        self.told.mkdir()
        self.port = free_port()
        self.controller = f"127.0.0.1:{self.port}"
        self.token = disk / "runs/testing/worker-token.json"
        self.far: FarWorker
        self.run = self.started()

    def started(self) -> Run:
        """The run's command, which also continues it."""
        part = f"{{name: troubled, directory: {self.told}}}"
        run = Run(
            self.disk,
            plugins("troubled_parts", "chaos.unreliable_store"),
            f"rlax.rollouts.engine={part}",
            f"rlax.weights.store={{name: unreliable, switch: {self.told / 'store'}}}",
            f"rlax.environment={part}",
            "rlax.trainer={name: bigram, learning_rate: 0.001, train_s: 0.1}",
            "rlax.evaluation.problems=0",
            "rlax.deadlines={heartbeat_s: 0.5, heartbeats_lost: 6, group_s: 60, episode_s: 60, "
            "weights_s: 20}",
            f"rlax.network.port={self.port}",
            "steps=100000",
        )
        Run.keep(run)
        return run

    def serve(self, name: str) -> tuple[str, ...]:
        joins = ("--controller", self.controller, "--token-file", str(self.token))
        return "serve", *joins, "--name", name

    @property
    def near(self) -> psutil.Process:
        (worker,) = wait_until(self.run.workers, "the worker that the run starts")
        return worker

    def found(self) -> list[Finding]:
        section = of_yaml(RunFiles(self.run.dir).config(), "config").section
        return findings(gather(RunFiles(self.run.dir), section, self.run.dir))

    def has_status(self) -> bool:
        """True if the present process of the trainer has written its status."""
        status = last_status(self.run.dir)
        return status is not None and status.pid == self.run.process.pid

    def steps(self) -> int:
        steps = self.run.steps()  # none, while it goes on from before its first checkpoint
        return int(steps[-1]["step"]) if steps else 0

    def until(self, condition: Callable[[], object], what: str) -> None:
        self.run.until(condition, what)

    def goes_on(self, more: int = 3) -> None:
        """Returns once so many more steps are trained."""
        enough = self.steps() + more
        self.until(lambda: self.steps() >= enough, f"{more} steps more")

    def quiet(self) -> None:
        """Returns once nothing is wrong any more."""
        found = list[Finding]()

        def is_quiet() -> bool:
            found[:] = self.found()
            return not found

        try:
            self.until(is_quiet, "a run without troubles")
        except pytest.fail.Exception as error:
            pytest.fail(f"the doctor still says {[one.what for one in found]}: {error}")

    def log_of(self, name: str) -> str:
        """The output of a worker that this test has started."""
        return (self.directory / f"{name}.log").read_text()

    def said(self, words: str) -> int:
        """The number of times that the trainer's log has said something."""
        return (self.run.dir / "logs/trainer.log").read_text().count(words)

    def again(self, variables: Mapping[str, str]) -> None:
        """Continues the run, with environment variables for its processes."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            self.run = self.started()

    def named(self, *words: str) -> tuple[Finding, float]:
        """Returns the finding with all these words, and the seconds until it was there."""
        began_s, found = time.monotonic(), list[Finding]()
        while (took_s := time.monotonic() - began_s) < LIMIT_S:
            found = self.found()
            for one in found:
                if all(word in one.what for word in words):
                    return one, took_s
            time.sleep(LOOK_S)
        pytest.fail(f"the doctor has not said {words} within {LIMIT_S:g} s, but {found}")


@contextmanager
def troubled(directory: Path) -> Iterator[Troubled]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        folders = os.pathsep.join((HELPERS, str(TESTS), str(TESTS / "integration")))
        patch.setenv("PYTHONPATH", folders, prepend=os.pathsep)
        disk = directory / "disk"
        small = stack.enter_context(small_disk(disk))
        one = Troubled(directory, disk=disk, small=small)
        try:
            one.far = stack.enter_context(far_worker(directory, one.controller, one.token))
            one.run.until(one.far.listens, "the far worker's port")
            one.run.until(lambda: len(one.run.steps()) > 3, "the first steps")
            one.quiet()
            yield one
        finally:
            kill_group(one.run.process)
            one.run.process.communicate(timeout=60)
