"""A proxy of ``network`` for code without an event loop: it runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rlax_plugin.testing.network import FINE, Conditions, Proxy

_LIMIT_S = 30.0


class ThreadedProxy:
    """A proxy on an event loop of its own.

    Attributes:
      proxy: read it from any thread, and change it with ``call``.
    """

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop):
        self.proxy, self._loop = proxy, loop

    @property
    def address(self) -> str:
        """Returns host:port of the proxy."""
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
    host: str = "127.0.0.1",
    port: int = 0,
    before: Coroutine[Any, Any, None] | None = None,
) -> Iterator[ThreadedProxy]:
    """Runs a proxy until the end of the block.

    Args:
      target, conditions, seed, host, port: see ``Proxy``.
      before: runs in the proxy's thread before it listens.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    proxy = Proxy(target, conditions, host=host, port=port, seed=seed)

    def wait(coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(_LIMIT_S)

    try:
        if before is not None:
            wait(before)
        wait(proxy.__aenter__())
        try:
            yield ThreadedProxy(proxy, loop)
        finally:
            wait(proxy.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT_S)
        loop.close()
