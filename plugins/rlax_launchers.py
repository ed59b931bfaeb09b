"""The built-in launchers: ``local`` starts worker processes here, ``static`` waits for workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

import psutil
from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
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
_BAD_CONFIG = 2  # exit status of ``rlax serve``: to start it again would not help


class LocalConfig(Section):
    """Starts worker processes on this machine, and starts them again if they end."""

    workers: Processes = Field(default=1, description="number of worker processes")
    max_restarts: NonNegativeInt = Field(
        default=5,
        description="limit for restarting a worker that ends within 60 s of its start: the number "
        "of such restarts in a row",
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
        self._watchers: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._restarts = 0
        self._cores: list[int] = []  # of the workers; none: they may use all

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def stop_s(self) -> float:
        return 2 * self._config.stop_s + _REAPED_S

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._divide_cores()
        for index in range(self._config.workers):
            name = f"local-{index}"
            command = python_command("-m", "rlax_plugin", "serve", "--controller", controller)
            command += ["--token-file", str(token_file), "--name", name, "--with-parent"]
            watcher = asyncio.ensure_future(self._keep(name, index, command, logs / f"{name}.log"))
            watcher.add_done_callback(self._given_up)
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
        """Keeps one worker alive until this is cancelled or the worker fails too often."""
        loop = asyncio.get_running_loop()
        failures = 0
        environment = {
            **os.environ,
            "RLAX_PARENT_PID": str(os.getpid()),
            "RLAX_STATE_DIR": str(log_path.parent.parent),  # there rlax doctor finds the worker
        }
        while True:
            started = loop.time()
            with log_path.open("ab") as out:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=environment,
                    # Its own session: a Ctrl-C is for the trainer, which then ends its workers.
                    start_new_session=True,
                )
            self._processes[name] = process
            self._pin(process.pid, index)
            status = await process.wait()
            failures = 0 if loop.time() - started > 60 else failures + 1
            log.warning("worker %s ended with status %d; see %s", name, status, log_path)
            if failures > self._config.max_restarts or status == _BAD_CONFIG:
                raise WorkerError(
                    f"worker {name} ended {failures} times in a row, the last time with status "
                    f"{status}: {_last_line(log_path)} (see {log_path})"
                )
            self._restarts += 1
            await asyncio.sleep(min(5.0, 0.1 * 2**failures))

    def _given_up(self, watcher: asyncio.Task[None]) -> None:
        """Logs the loss of one worker; the loss of the last one stops the run."""
        if watcher.cancelled() or (error := watcher.exception()) is None:
            return
        log.error("%s", error)
        if all(k.done() for k in self._watchers):
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


def _last_line(path: Path, most: int = 4096) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


class StaticConfig(NoOptions):
    """Starts no workers: you start them with the command that ``rlax train`` prints."""


class Static(Launcher):
    """Starts no workers; they are started elsewhere with ``rlax serve --controller HOST:PORT``."""

    restarts = 0

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        log.info("waiting for workers to register with %s (%s)", controller, token_file)

    async def stop(self) -> None:
        """Does nothing, as static workers learn of the end from the reply to their heartbeat."""


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
    }
