"""The built-in launchers: ``local`` starts worker processes here, ``static`` waits for workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import psutil
from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    ConfigError,
    Extension,
    Launcher,
    NonNegativeInt,
    NoOptions,
    Processes,
    Seconds,
    Section,
    WorkerError,
    hookimpl,
    python_command,
)

log = logging.getLogger("rlax.launcher")

_REAPED_S = 10.0  # for processes that were killed to be gone
_BAD_CONFIG = 2  # exit status of ``rlax serve``: to start it again at once would not help
_WORKS_S = 60.0  # a worker that has lived so long did not fail at its start
_LONGEST_PAUSE_S = 600.0  # before a worker that fails again and again is started


class LocalConfig(Section):
    """Starts worker processes on this machine, and starts them again if they end."""

    workers: Processes = Field(default=1, description="number of worker processes")
    max_restarts: NonNegativeInt = Field(
        default=5,
        description="limit for restarting a worker at once that ends within 60 s of its start: the "
        "number of such restarts in a row. Then, and at once if its config or one of its files is "
        "wrong (status 2), it is tried again after pauses of 10 s to 10 minutes; the run ends if "
        "that is so for all workers and none has lived for 60 s",
    )
    stop_s: Seconds = Field(
        default=5.0, description="time between SIGTERM and SIGKILL when the run ends"
    )
    threads: NonNegativeInt = Field(
        default=0,
        description="number of CPU cores that each worker may use; 0: all. Workers use different "
        "cores if there are enough",
    )
    trainer_threads: NonNegativeInt = Field(
        default=0,
        description="number of CPU cores that only the trainer and its reward processes may use; "
        "workers use the others. 0: trainer and workers use the same cores",
    )


class Local(Launcher):
    """Starts ``rlax serve`` processes on this machine and starts them again when they end."""

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self.stop_s = 2 * config.stop_s + _REAPED_S
        self._watchers: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._worked = False  # True once a worker has lived for _WORKS_S
        self._given_up: set[str] = set()  # those that are only tried now and then
        self.failing: dict[str, str] = {}
        self._cores: list[int] = []  # of the workers; none: they may use all

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._divide_cores()
        for index in range(self._config.workers):
            name = f"local-{index}"
            command = python_command("-m", "rlax_plugin", "serve", "--controller", controller)
            command += ["--token-file", str(token_file), "--name", name, "--with-parent"]
            watcher = asyncio.ensure_future(self._keep(name, index, command, logs / f"{name}.log"))
            watcher.add_done_callback(self._ended)
            self._watchers.append(watcher)

    def _divide_cores(self) -> None:
        """Keeps the trainer off the workers' cores; called before it starts threads for JAX."""
        config = self._config
        if not (config.threads or config.trainer_threads):
            return
        cores = sorted(os.sched_getaffinity(0))
        self._cores = cores[config.trainer_threads :]
        if config.trainer_threads:
            trainer = psutil.Process()  # and its reward processes, which begin at the same time
            for process in (trainer, *trainer.children()):
                with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has just ended
                    for thread in process.threads():
                        os.sched_setaffinity(thread.id, cores[: config.trainer_threads])

    def _pin(self, pid: int, index: int) -> None:
        if self._cores:
            count = self._config.threads or len(self._cores)
            chosen = {self._cores[(index * count + i) % len(self._cores)] for i in range(count)}
            # If a worker has ended in the meantime, the code that waits for it notices.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, chosen)

    async def _keep(self, name: str, index: int, command: list[str], log_path: Path) -> None:
        """Keeps one worker alive until this is cancelled, however often it fails.

        Raises:
          WorkerError: no worker has ever worked, and none is to be started again at once.
        """
        failures = pauses = 0
        while True:
            self.failing.pop(name, None)
            try:
                process = await self._begin(name, index, command, log_path)
                if not await _ends_within(process, _WORKS_S):
                    failures = pauses = 0
                    self._worked = True
                    self._given_up.discard(name)
                    await process.wait()
                failures += 1
                status = process.returncode
                text = f"{_how(status)}: {_last_line(log_path)}"
            except OSError as error:  # such as too many processes, or no space for its log
                failures, status, text = failures + 1, None, f"as it could not start: {error}"
            log.warning("worker %s ended %s (see %s)", name, text, log_path)
            times = f"{failures} times in a row, the last time {text} (see {log_path})"
            # A config that was right may name a file that is wrong for a while.
            if status == _BAD_CONFIG or failures > self._config.max_restarts:
                self._given_up.add(name)
            if len(self._given_up) == self._config.workers and not self._worked:
                raise WorkerError(f"worker {name} ended {times}")
            pause_s = min(5.0, 0.1 * 2**failures)
            if name in self._given_up:
                pauses += 1
                pause_s = min(_LONGEST_PAUSE_S, 5.0 * 2**pauses)
            again = time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s))
            self.failing[name] = f"worker {name} is started again at {again}: it ended {times}"
            await asyncio.sleep(pause_s)
            self.restarts += 1

    async def _begin(
        self, name: str, index: int, command: list[str], log_path: Path
    ) -> asyncio.subprocess.Process:
        with log_path.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "RLAX_PARENT_PID": str(os.getpid()),
                    "RLAX_STATE_DIR": str(log_path.parent.parent),  # there doctor finds the worker
                },
                # Its own session: a Ctrl-C is for the trainer, which then ends its workers.
                start_new_session=True,
            )
        self._processes[name] = process
        self._pin(process.pid, index)
        return process

    def _ended(self, watcher: asyncio.Task[None]) -> None:
        """Stops the run if no worker could be started."""
        if watcher.cancelled() or (error := watcher.exception()) is None:
            return
        log.error("%s", error)
        # The event loop is the controller's: an error that no code waits for stops the run.
        watcher.get_loop().call_exception_handler({"message": str(error), "exception": error})

    async def stop(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        living = [p for p in self._processes.values() if p.returncode is None]
        waits = [asyncio.ensure_future(p.wait()) for p in living]
        for send in ("terminate", "kill"):
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    getattr(process, send)()
            if waits:
                await asyncio.wait(waits, timeout=self._config.stop_s)
            living = [p for p in living if p.returncode is None]
        for wait in waits:
            wait.cancel()


async def _ends_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"with status {status}"
    if status == -signal.SIGKILL:
        return "by SIGKILL, as the kernel sends if memory is short (see dmesg)"
    known = {int(number): number.name for number in signal.Signals}
    return f"by {known.get(-status, f'signal {-status}')}"


def _last_line(path: Path, most: int = 4096) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


class StaticConfig(NoOptions):
    """Starts no workers: you start them with the command that ``rlax train`` prints."""


class Static(Launcher):
    """Starts no workers; they are started elsewhere with ``rlax serve --controller HOST:PORT``."""

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        log.info("waiting for workers to register with %s (%s)", controller, token_file)

    async def stop(self) -> None:
        """Does nothing, as static workers learn of the end from the reply to their heartbeat."""


class ColocatedConfig(NoOptions):
    """Generates in the trainer's process, in turns with training on the same devices."""

    workers: ClassVar[int] = 1


_SAYS = {
    "devices": "of one process: its worker needs none besides the trainer's, and generates while "
    "the trainer waits for a batch; rlax init chooses this where the config is for an accelerator"
}


class Colocated(Static):
    """Starts no processes: the controller has one worker itself. Others may join as with static."""

    colocated = True

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        """Does nothing: the controller sees ``colocated``."""


def _check_cores(config: LocalConfig, context: BuildContext) -> None:
    if not config.trainer_threads:
        return
    if config.trainer_threads >= (cores := len(os.sched_getaffinity(0))):
        reason = f"at most {cores - 1}, so that one of the {cores} cores is left for workers"
        raise ConfigError("rlax.launcher.trainer_threads", config.trainer_threads, reason)


@hookimpl
def rlax_register_launcher() -> dict[str, Extension]:
    return {
        "local": Extension(
            LocalConfig, lambda config, context: Local(config), check_start=_check_cores
        ),
        "static": Extension(StaticConfig, lambda config, context: Static()),
        "colocated": Extension(
            ColocatedConfig,
            lambda config, context: Colocated(),
            check=lambda config, context: CheckResult(_SAYS, one_process=True),
        ),
    }
