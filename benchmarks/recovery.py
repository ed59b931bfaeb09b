"""Measures how long a run needs after a worker, or the trainer, is killed or frozen.

    python benchmarks/recovery.py --out DIR [--times 10] [CONFIG] [KEY=VALUE ...]

The run has two workers of its own; one is killed or frozen while it holds groups.

- killed worker: from the signal until the last of its groups is issued again.
- frozen worker: from its last heartbeat until the last of its groups is issued again.
- killed trainer: from the start of the new process, without its imports, until its next step ends.

Times of groups are those of the run's ledger, which is written every 0.05 s.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rlax_plugin.liveness.marks import Mark, lives, marks
from rlax_plugin.liveness.run_status import WorkerStatus
from rlax_plugin.liveness.status_file import last_status
from rlax_plugin.records.faults import LOG, FaultPoint

LIMIT_S, LOOK_S = 300.0, 0.005
HEARTBEAT_S, HEARTBEATS_LOST = 2.0, 3
SETTINGS = (
    "rlax.launcher={name: local, workers: 2}",
    "rlax.rollouts.engine={name: scripted, token_s: 0.1}",
    "rlax.trainer={name: bigram, learning_rate: 0.001, checkpoint_every: 5}",
    "rlax.evaluation.problems=0",
    f"rlax.deadlines.heartbeat_s={HEARTBEAT_S:g}",
    f"rlax.deadlines.heartbeats_lost={HEARTBEATS_LOST}",
    "steps=1000000",
    "run_name=recovery",
)


class Measured:
    """The run, which is started again as often as needed."""

    def __init__(self, config: str, overrides: list[str], out: Path):
        base = f"base_output_directory={out}/runs"
        self._command = [sys.executable, "-m", "rlax_plugin", "train", config, *SETTINGS, base]
        self._command += overrides
        self._out, self.dir = out, out / "runs/recovery"
        self._points = out / "points"
        self.process: subprocess.Popen[str]
        self.imported_s = self.start()

    def start(self) -> float:
        """Starts the command; returns the seconds of its imports, until it reads the prompts."""
        self._points.unlink(missing_ok=True)
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=(self._out / "stderr").open("w"),
            env=os.environ | {LOG: str(self._points)},
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("reading the prompts"):
                # What it prints from now on is little: a step a second at most.
                return time.monotonic() - began_s
        raise SystemExit(f"the run has ended: {(self._out / 'stderr').read_text()}")

    def steps_of_process(self) -> int:
        """Returns the number of steps that the present process has finished."""
        points = self._points.read_text().split() if self._points.exists() else []
        return points.count(FaultPoint.METRICS_WRITTEN)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"{what} has not happened")
            time.sleep(LOOK_S)

    def workers(self) -> dict[str, WorkerStatus]:
        """Returns the workers by the last status."""
        status = last_status(self.dir)
        if status is None or status.controller is None:
            return {}
        return {one.name: one for one in status.controller.workers}

    def both_work(self) -> bool:
        """True if both workers hold samples."""
        found = self.workers().values()
        return len(found) == 2 and all(one.samples and one.silent_s < 3 for one in found)

    def mark(self, name: str) -> Mark:
        return next(one for one in marks(self.dir) if one.name == name and lives(one))

    def reissued(self, after: float) -> list[float]:
        """Returns the times at which groups were issued again."""
        with closing(sqlite3.connect(f"file:{self.dir}/ledger.sqlite?mode=ro", uri=True)) as db:
            query = "SELECT at FROM events WHERE event = 'reissued' AND at > ?"
            return [at for (at,) in db.execute(query, (after,))]

    def reissue(self, after: float) -> float:
        """Returns the time at which the last of a worker's groups was issued again."""
        self.wait(lambda: self.reissued(after), "groups issued again")
        time.sleep(1.0)  # all of them are, at one moment
        return max(self.reissued(after))

    def last_heartbeat(self, name: str) -> float:
        """Returns the Unix time of the last heartbeat of a frozen worker."""
        found = last_status(self.dir)
        assert found is not None and found.controller is not None
        worker = next(one for one in found.controller.workers if one.name == name)
        return found.controller.seen - worker.silent_s


def killed_worker(run: Measured, name: str) -> float:
    run.wait(run.both_work, "two workers at work")
    began = time.time()
    os.kill(run.mark(name).pid, signal.SIGKILL)
    return run.reissue(began) - began


def frozen_worker(run: Measured, name: str) -> float:
    run.wait(run.both_work, "two workers at work")
    mark, began = run.mark(name), time.time()
    os.kill(mark.pid, signal.SIGSTOP)
    try:
        silent = HEARTBEAT_S * 1.5
        run.wait(lambda: run.workers()[name].silent_s > silent, "a missing heartbeat")
        heard = run.last_heartbeat(name)
        return run.reissue(began) - heard
    finally:
        os.kill(mark.pid, signal.SIGCONT)


def killed_trainer(run: Measured) -> tuple[float, float]:
    """Returns the seconds of the imports, and those from then on to the end of the next step."""
    run.wait(lambda: run.steps_of_process() > 2, "some steps")
    run.process.kill()
    run.process.wait(LIMIT_S)
    imports_s = run.start()
    began_s = time.monotonic()
    run.wait(run.steps_of_process, "the next step")
    return imports_s, time.monotonic() - began_s


def show(what: str, seconds: list[float]) -> None:
    each = " ".join(f"{one:.2f}" for one in seconds)
    print(
        f"| {what} | {len(seconds)} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |"
        f" <!-- {each} -->",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", nargs="?", default="tests/configs/testing.yml")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_intermixed_args()
    arguments.out.mkdir(parents=True)
    run = Measured(arguments.config, arguments.overrides, arguments.out)
    try:
        names = [f"local-{number % 2}" for number in range(arguments.times)]
        show("a worker is killed", [killed_worker(run, name) for name in names])
        show("a worker is frozen", [frozen_worker(run, name) for name in names])
        pairs = [killed_trainer(run) for _ in names]
        show("imports of a new trainer", [imports_s for imports_s, _ in pairs])
        show("the trainer is killed", [next_s for _, next_s in pairs])
    finally:
        run.process.send_signal(signal.SIGINT)
        run.process.communicate(timeout=LIMIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
