"""A ``rlax train`` process in a directory of its own, and what it leaves there."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import processes
import psutil
import pyarrow.parquet as pq
import pytest
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "tests/configs/testing.yml")
HELPERS = str(ROOT / "tests/helpers")
DEADLINE_S = 200
TWO_WORKERS = "rlax.launcher.workers=2"


class Records:
    """What a run has left in its directory."""

    def __init__(self, directory: Path, name: str = "testing"):
        self.dir = directory / "runs" / name

    def steps(self) -> list[dict[str, float]]:
        return lines(self.dir / "metrics.jsonl")

    def summary(self) -> dict:
        return json.loads((self.dir / "summary.json").read_text())

    def trained(self) -> list[dict]:
        """Every trained sample, in the order of the steps."""
        return [row for row in rows(self.dir) if row["state"] == "trained"]

    def samples(self) -> list[dict]:
        """Every sample once: trained ones as their batch has them, then the others."""
        trained = self.trained()
        ids = {row["group"] for row in trained}
        return trained + [row for row in rows(self.dir) if row["group"] not in ids]


class Run(Records):
    """A ``rlax train`` process in a directory of its own; see ``end_all``."""

    _started: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(
        self, directory: Path, *overrides: str, config: str = CONFIG, name: str = "testing"
    ):
        super().__init__(directory, name)
        self.process = subprocess.Popen(
            # As for the script ``rlax``, the working directory is no place for modules.
            [sys.executable, "-P", "-m", "rlax_plugin", "train", config, *overrides],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        Run._started.append(self.process)

    @classmethod
    def end_all(cls) -> None:
        """Ends the runs of tests that failed before they did."""
        while cls._started:
            process = cls._started.pop()
            if process.poll() is None:
                kill_group(process)
                process.communicate()

    @classmethod
    def keep(cls, run: Run) -> None:
        """Leaves it to the caller to end a run that several tests share."""
        cls._started.remove(run.process)

    def end(self) -> tuple[int, str]:
        try:
            out, _ = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            logs = "\n".join(p.read_text()[-3000:] for p in self.dir.glob("logs/*.log"))
            pytest.fail(f"the run did not end:\n{logs}")
        return self.process.returncode, out

    def until[T](self, look: Callable[[], T], what: str) -> T:
        """The first true value that ``look`` returns; fails at once if the run ends without it."""

        def look_on() -> T:
            time.sleep(0.02)  # most looks read files
            ended = self.process.poll() is not None
            seen = look()
            assert seen or not ended, "the run has ended"
            return seen

        try:
            return wait_until(look_on, what, limit_s=DEADLINE_S)
        except AssertionError as error:
            kill_group(self.process)  # or what it says would never end
            said = self.process.communicate()[0]
            pytest.fail(f"{what} did not happen ({error}): {said}")

    def workers(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in children if "serve" in command(child)]
        return []


def plugins(*more: str) -> str:
    """The override that adds plug-ins to those of the config."""
    return f"rlax.plugins=[{', '.join(('rlax_plugin.testing', *more))}]"


def held(waits: Mapping[int, Path], *options: str) -> tuple[str, str]:
    """Overrides of a run whose steps wait for files; needs ``HELPERS`` in PYTHONPATH.

    Args:
      options: others of the trainer, such as ``learning_rate: 3``.
    """
    files = ", ".join(f"'{step}': {file}" for step, file in waits.items())
    trainer = ", ".join(("name: held", f"waits: {{{files}}}", *options))
    return plugins("held"), f"rlax.trainer={{{trainer}}}"


@contextmanager
def process(directory: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``rlax`` with its output in ``<name>.log``; killed at the end if it still lives."""
    with processes.process(directory / f"{name}.log", *arguments, cwd=directory) as started:
        yield started


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kills a process and those of its group, if there are any left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""

    def lives(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    return [process for process in processes if lives(process)]


def free_port() -> int:
    """Below those that the system gives to others, so that none of them takes it meanwhile."""
    while True:
        with socket.socket() as one, suppress(OSError):
            # Not of a generator that a test, hypothesis or a library has seeded.
            port = random.SystemRandom().randrange(10_000, 32_000)
            one.bind(("127.0.0.1", port))
            return port


def digests(run: Path) -> dict[int, set[str]]:
    """Version -> every digest it was ever published with."""
    found: dict[int, set[str]] = {}
    for segment, _ in journal.read(RunFiles(run)):
        for event in segment.events:
            if isinstance(event, ev.Published):
                found.setdefault(event.version, set()).add(event.digest)
    return found


def lines(path: Path) -> list[dict]:
    """The whole lines of a file that may be written to at this moment."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def rows(run: Path) -> list[dict]:
    """The rows of all of a run's files of samples, in the files' order."""
    tables = [pq.read_table(path) for path in sorted(run.glob("samples/*/*.parquet"))]
    return [row_of_one_turn(row) for table in tables for row in table.to_pylist()]


def row_of_one_turn(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with all columns; seed and finish are those of its only turn."""
    whole = dict.fromkeys(samples.SCHEMA.names) | dict(row)
    (seed,), (finish,) = whole.pop("seeds"), whole.pop("finish")
    return whole | {"seed": seed, "finish": finish}
