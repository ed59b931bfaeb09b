"""The launcher ``ray``, in the trainer: it starts the driver, and tells and hears it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from rlax_plugin.api import Launcher, WorkerError, python_command
from rlax_ray.options import KEY, LOCAL, Pool, RayConfig

log = logging.getLogger("rlax.launcher")

_ENDED_S = 30.0  # for the driver to end the cluster, beyond the workers' own time
_MOST_LINE = 1 << 20
_WORKS_S = 60.0  # a driver that has lived so long did not fail at its start
_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


class RayLauncher(Launcher):
    """Has a driver process keep the workers in a Ray cluster, and starts it again if it ends.

    Args:
      drain_s: time in which a worker leaves, ``rlax.deadlines.drain_s``.
    """

    def __init__(self, config: RayConfig, drain_s: float) -> None:
        self._config, self._drain_s = config, drain_s
        self._workers, self.scaling = config.workers, config.rule
        self.stop_s = 2 * config.stop_s + 2 * _ENDED_S
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._last_incarnation = 0
        self._directory = ""  # of the driver
        self.failing: dict[str, str] = {}

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        plan = {
            "address": self._config.address,
            "cpus": _local_cpus(self._config),
            "token_file": str(token_file),
            "logs": str(logs.resolve()),
            "pools": [_plan(pool, controller) for pool in self._config.pools],
            "max_restarts": self._config.max_restarts,
            "stop_s": self._config.stop_s,
            "drain_s": self._drain_s,
        }
        self._watcher = asyncio.ensure_future(self._keep(plan, logs / "ray.log"))
        self._watcher.add_done_callback(self._given_up)

    def resize(self, workers: int) -> None:
        self._workers = workers
        self._tell({"workers": workers})

    def _tell(self, request: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _keep(self, plan: dict[str, Any], log_path: Path) -> None:
        """Keeps a driver alive until this is cancelled, or drivers fail too often."""
        loop, failures = asyncio.get_running_loop(), 0
        environment = self._config.environment(os.environ)
        while True:
            began = loop.time()
            # Short, because Ray makes sockets below it, whose names have at most 107 characters.
            self._directory = tempfile.mkdtemp(prefix="rlax-ray-", dir="/tmp")
            with log_path.open("ab") as out:
                process = self._process = await asyncio.create_subprocess_exec(
                    *python_command("-m", "rlax_ray.driver"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=out,
                    env=environment,
                    limit=_MOST_LINE,
                    start_new_session=True,  # a Ctrl-C is for the trainer
                )
            latest = {"workers": self._workers, "last_incarnation": self._last_incarnation}
            self._tell({**plan, **latest, "directory": self._directory})
            await self._hear(process, log_path)
            status = await process.wait()
            self._clear()  # after a driver that was killed
            self.failing.clear()
            failures = 0 if loop.time() - began > _WORKS_S else failures + 1
            log.warning("the driver of Ray ended with status %d; see %s", status, log_path)
            if failures > self._config.max_restarts:
                raise WorkerError(f"the driver of Ray ended {failures} times in a row: {log_path}")
            self.restarts += 1
            await asyncio.sleep(min(5.0, 0.1 * 2**failures))

    async def _hear(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        """Reads the driver's events until it ends.

        Raises:
          WorkerError: no cluster in time, or no worker is left that could be started.
        """
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._config.start_s) as starting:
                while line := await process.stdout.readline():
                    event = json.loads(line)
                    if event["event"] == "ready":
                        starting.reschedule(None)
                    self._heard(event, log_path)
        except TimeoutError:
            raise WorkerError(
                f"{KEY}.address = {self._config.address}: no cluster within {KEY}.start_s = "
                f"{self._config.start_s:g} s; see {log_path}"
            ) from None

    def _heard(self, event: dict[str, Any], log_path: Path) -> None:
        match event["event"]:
            case "ready":
                where = self._config.address
                what = "a cluster of this run" if where == LOCAL else f"the cluster at {where}"
                log.info("workers are started by Ray in %s", what)
            case "log":
                log.log(_LEVELS[event["level"]], "%s", event["text"])
            case "restarted":
                self.restarts += 1
            case "started":
                self._last_incarnation = max(self._last_incarnation, event["incarnation"])
            case "failing":
                self.failing.pop(event["worker"], None)
                if event["text"]:
                    self.failing[event["worker"]] = event["text"]
            case "failed":
                raise WorkerError(f"{event['text']} (see {log_path})")

    def _given_up(self, watcher: asyncio.Task[None]) -> None:
        """Stops the run: no worker is left, and none can be started."""
        if watcher.cancelled() or (error := watcher.exception()) is None:
            return
        log.error("%s", error)
        watcher.get_loop().call_exception_handler({"message": str(error), "exception": error})

    async def stop(self) -> None:
        try:
            await self._stop()
        finally:
            self._clear()

    def _clear(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._tell({"stop_s": self._config.stop_s})
        waiting = asyncio.ensure_future(process.wait())
        await asyncio.wait({waiting}, timeout=2 * self._config.stop_s + _ENDED_S)
        if not waiting.done():
            with contextlib.suppress(ProcessLookupError):  # a cluster of its own ends with it
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait({waiting}, timeout=_ENDED_S)
        waiting.cancel()


def _plan(pool: Pool, controller: str) -> dict[str, Any]:
    """Returns what the driver must know of a pool."""
    arguments = ["--controller", controller]
    if pool.rollouts.slots is not None:
        arguments.append(f"rlax.rollouts.slots={pool.rollouts.slots}")
    if pool.rollouts.engine is not None:
        arguments.append(f"rlax.rollouts.engine={json.dumps(pool.rollouts.engine.model_dump())}")
    arguments += [f"{key}={json.dumps(value)}" for key, value in pool.maxtext.items()]
    needs = [f"{amount:g} {name}" for name, amount in pool.resources.items()]
    needs += [f"label {name} = {value}" for name, value in pool.labels.items()]
    return {
        "name": pool.name,
        "min": pool.min,
        "most": pool.most,
        "resources": pool.resources,
        "labels": pool.labels,
        "needs": ", ".join(needs) or "nothing in particular",
        "arguments": arguments,
    }


def _local_cpus(config: RayConfig) -> float:
    """Returns the number of CPUs that a cluster of one's own must have for all workers."""
    return sum(pool.most * pool.resources.get("CPU", 0.0) for pool in config.pools)
