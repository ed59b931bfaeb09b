"""Contract of launchers: they end all processes that they start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil

from rlax_plugin.ports.protocols import Launcher
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.testing.contracts.inspection import Inspection, eventually, require, run_async
from rlax_plugin.testing.contracts.trial import Trial

_START_S = 1.0  # until a process appears, if it starts any
_RESTART_S = 10.0
_WHOLE_S = 60.0
_NOWHERE = "127.0.0.1:1"  # no controller answers there, so workers keep trying


def check_launcher(trial: Trial, part: Inspection) -> None:
    """Checks processes of this machine; those started elsewhere are not seen."""
    build: Callable[[], Launcher] = trial.build
    before = set(_children())

    def started() -> list[psutil.Process]:
        return [child for child in _children() if child not in before]

    async def lives() -> None:
        launcher, token_file = build(), trial.run_dir / "worker-token.json"
        await launcher.stop()  # before it has started anything
        Secret(new_token(), new_identity().certificate).write(token_file)
        await launcher.start(_NOWHERE, trial.run_dir, token_file)
        try:
            if await eventually(started, _START_S):
                await _kill_one(launcher, started()[0])
        finally:
            await launcher.stop()
        left = [process.pid for process in started()]
        require(not left, f"{len(left)} processes are left after stop")
        await launcher.stop()

    try:
        with part.rule(
            "starts a worker again that ends, counts it in restarts, and leaves no process behind",
            "keep every process that start and restarts made, and end and await each in stop, "
            "politely first; a stop before the start, and a second one, do nothing",
        ):
            run_async(lives, _WHOLE_S)
    finally:
        for process in started():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


async def _kill_one(launcher: Launcher, process: psutil.Process) -> None:
    process.kill()
    counted = await eventually(lambda: launcher.restarts == 1, _RESTART_S)
    require(counted, f"a worker was killed, and restarts is {launcher.restarts!r}")


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if _lives(child)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
