"""Built-in launchers: ``local`` starts worker processes here, ``static`` waits for others'."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rlax_plugin import Extension, NoOptions, Section, hookimpl
from rlax_plugin.protocols import Launcher

log = logging.getLogger("rlax.launcher")


class LocalConfig(Section):
    """Options of ``local``."""

    workers: Annotated[int, Field(ge=1)] = Field(default=1, description="worker processes")
    max_restarts: Annotated[int, Field(ge=0)] = Field(
        default=10, description="restarts of one worker in a row without it living for 60 s"
    )
    stop_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="seconds from SIGTERM to SIGKILL when the run ends"
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="CPU cores per worker (0: all); workers get disjoint ones where possible",
    )


class Local(Launcher):
    """Starts ``rlax serve`` processes on this machine and starts them again when they end."""

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = False
        self._restarts = 0

    @property
    def restarts(self) -> int:
        return self._restarts

    async def start(self, argv: Sequence[str], controller: str, run_dir: Path) -> None:
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for index in range(self._config.workers):
            name = f"local-{index}"
            command = [sys.executable, "-m", "rlax_plugin", "serve", *argv]
            command += ["--controller", controller, "--name", name, "--with-parent"]
            self._keepers.append(
                asyncio.ensure_future(self._keep(name, index, command, logs / f"{name}.log"))
            )

    def _cores(self, index: int) -> list[int]:
        cores, count = sorted(os.sched_getaffinity(0)), self._config.threads
        return [cores[(index * count + i) % len(cores)] for i in range(count)] if count else cores

    async def _keep(self, name: str, index: int, command: list[str], log_path: Path) -> None:
        """Keeps one worker alive until ``stop``."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            started = loop.time()
            with log_path.open("ab") as out:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    # Its own session: a Ctrl-C is for the trainer, which then ends its workers.
                    start_new_session=True,
                )
            os.sched_setaffinity(process.pid, self._cores(index))
            self._processes[name] = process
            status = await process.wait()
            if self._stopping:
                return
            failures = 0 if loop.time() - started > 60 else failures + 1
            log.warning("worker %s ended with status %d; see %s", name, status, log_path)
            if failures > self._config.max_restarts:
                log.error("worker %s is not started again after %d failures", name, failures)
                return
            self._restarts += 1
            await asyncio.sleep(min(5.0, 0.1 * 2**failures))

    async def stop(self) -> None:
        self._stopping = True
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=self._config.stop_s)
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(p.wait() for p in self._processes.values()))


class Static(Launcher):
    """Starts nothing: somebody else runs ``rlax serve CONFIG --controller HOST:PORT``."""

    restarts = 0

    async def start(self, argv: Sequence[str], controller: str, run_dir: Path) -> None:
        log.info("waiting for workers to register with %s", controller)

    async def stop(self) -> None:
        """Static workers leave by themselves: the reply to their heartbeat says that it is over."""


@hookimpl
def rlax_register_launcher() -> dict[str, Extension]:
    return {
        "local": Extension(LocalConfig, lambda config, context: Local(config)),
        "static": Extension(NoOptions, lambda config, context: Static()),
    }
