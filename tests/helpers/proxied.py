"""A worker behind proxies: one before the controller that it calls, one before itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from namespaces import Machine

from rlax_plugin.testing.network import FINE, Conditions, Proxy

_PROGRAM = str(Path(__file__).with_name("proxied_worker.py"))
_LIMIT_S = 30.0


class ThreadedProxy:
    """A proxy on an event loop of its own, for a test that has none.

    Attributes:
      proxy: read it from any thread, and change it with ``call``.
    """

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop):
        self.proxy, self._loop = proxy, loop

    @property
    def address(self) -> str:
        return self.proxy.address

    def call(self, change: Callable[[Proxy], Any]) -> None:
        """Calls a function with the proxy, on its loop; returns once that is done."""

        async def on_loop() -> None:
            change(self.proxy)

        asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(_LIMIT_S)

    def half_open(self) -> int:
        """Makes all open connections half-open; returns their number."""
        connections = list(self.proxy.connections)
        self.call(lambda proxy: [one.half_open() for one in proxy.connections])
        return len(connections)


@contextmanager
def threaded(
    target: str,
    conditions: Conditions = FINE,
    seed: int = 0,
    *,
    machine: Machine | None = None,
    port: int = 0,
) -> Iterator[ThreadedProxy]:
    """A proxy, until the end of the block.

    Args:
      machine: the one that it is on, at that machine's address; None: this one, on loopback.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    host = "127.0.0.1" if machine is None else machine.address
    proxy = Proxy(target, conditions, host=host, port=port, seed=seed)

    def wait(coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(_LIMIT_S)

    try:
        if machine is not None:
            wait(machine.enter_network())
        wait(proxy.__aenter__())
        yield ThreadedProxy(proxy, loop)
        wait(proxy.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT_S)
        loop.close()


class FarWorker:
    """A worker process that calls, and is called, through proxies only.

    Attributes:
      calling: before the controller.
      called: before the worker, whose own address it has once the worker listens.
      process: the worker; it is killed at the end of the block.
    """

    def __init__(self, calling: ThreadedProxy, called: ThreadedProxy, own: Path):
        self.calling, self.called = calling, called
        self.process: subprocess.Popen[bytes]
        self._own = own

    def listens(self) -> bool:
        """True once it listens; from then on, calls reach it."""
        if self._own.exists() and (address := self._own.read_text()):
            self.called.call(lambda proxy: setattr(proxy, "target", address))
            return True
        return False


@contextmanager
def far_worker(
    directory: Path,
    controller: str,
    token_file: Path,
    *options: str,
    conditions: Conditions = FINE,
    seed: int = 0,
) -> Iterator[FarWorker]:
    """Starts a worker named ``far`` with its output in ``far.log``.

    Args:
      controller: its address, to which only the proxy connects.
    """
    with ExitStack() as stack:
        calling = stack.enter_context(threaded(controller, conditions, seed))
        called = stack.enter_context(threaded("127.0.0.1:1", conditions, seed + 1))
        far = FarWorker(calling, called, directory / "far.address")
        serve = ("serve", "--controller", calling.address, "--token-file", str(token_file))
        command = [sys.executable, _PROGRAM, called.address, str(directory / "far.address")]
        with (directory / "far.log").open("w") as out:
            far.process = subprocess.Popen(
                [*command, *serve, "--name", "far", *options], cwd=directory, stdout=out, stderr=out
            )
        try:
            yield far
        finally:
            far.process.kill()
            far.process.wait(60)
