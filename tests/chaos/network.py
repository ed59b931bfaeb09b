"""The network between processes of a test: a TCP proxy whose faults change while it runs.

It owns faults of connections: delay, stalls, resets, and connections whose
other end is gone although nothing says so. The proxy passes bytes unchanged and interprets none
of them, so both ends encrypt and verify certificates as if it were not there.
"""

import asyncio
import random
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Literal, Self

End = Literal["caller", "target"]

_OTHER: dict[End, End] = {"caller": "target", "target": "caller"}
_CHUNK, _CHUNKS = 1 << 16, 64  # bytes of one, and how many in a direction before the sender waits
_CLOSE_S = 5.0  # for all connections to end with the proxy
_LIMIT_S = 30.0  # for a call on the loop of a proxy in a thread of its own


@dataclass(frozen=True, slots=True)
class Conditions:
    """Properties of a connection, the same in both directions.

    Attributes:
      delay_s: time from one end to the other, for each byte.
      jitter_s: upper limit of a further delay, which differs between chunks; the order stays.
      stalled: True to hold all bytes back; new connections are accepted and go no further.
      resets_s: shortest and longest age at which a connection is reset; None: never.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    stalled: bool = False
    resets_s: tuple[float, float] | None = None


FINE = Conditions()


class Pace:
    """Delivery times of the chunks of one direction; ``chance`` chooses the jitter."""

    def __init__(self, chance: random.Random):
        self._chance = chance
        self._last_s = 0.0

    def due_s(self, now_s: float, conditions: Conditions) -> float:
        """Returns the time at which a chunk arrives, which is never before the previous chunk."""
        jitter_s = self._chance.uniform(0, conditions.jitter_s) if conditions.jitter_s else 0.0
        self._last_s = max(self._last_s, now_s + conditions.delay_s + jitter_s)
        return self._last_s


class Connection:
    """A connection through the proxy."""

    def __init__(self, seed: str, conditions: Conditions):
        self.conditions = conditions
        self.task: Any = asyncio.current_task()
        self._seed, self._lost = seed, False
        self._ends: dict[End, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._flows = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def change(self, **changes: Any) -> None:
        """Changes some conditions; bytes that were read before keep their delivery times."""
        self.conditions = replace(self.conditions, **changes)
        (self._flows.clear if self.conditions.stalled else self._flows.set)()
        if "resets_s" in changes:
            self._timer = self._timer and self._timer.cancel()
            if ages_s := self.conditions.resets_s:
                age_s = random.Random(f"{self._seed}/age").uniform(*ages_s)
                self._timer = asyncio.get_running_loop().call_later(age_s, self.reset)

    def reset(self) -> None:
        """Resets both ends, which they see as ECONNRESET; bytes on their way are lost."""
        self.task.cancel()

    def half_open(self) -> None:
        """Loses all bytes from now on, without a sign to either end."""
        self._lost = True
        self._flows.set()

    async def run(self, caller: tuple[asyncio.StreamReader, Any], target: str) -> None:
        """Passes bytes until both ends have closed their side, or one of them is reset."""
        self._ends["caller"] = caller
        self.change(resets_s=self.conditions.resets_s)
        whole = False
        try:
            await self._flows.wait()
            host, _, port = target.rpartition(":")
            self._ends["target"] = await asyncio.open_connection(host, int(port))
            async with asyncio.TaskGroup() as group:
                for end in self._ends:
                    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
                    group.create_task(self._collect(end, chunks))
                    group.create_task(self._deliver(end, chunks))
            whole = True
        except* OSError:
            pass  # both ends learn of it in the next lines
        finally:
            self.change(resets_s=None)
            for _, writer in self._ends.values():
                writer.close() if whole else _reset(writer)

    async def _collect(self, end: End, chunks: asyncio.Queue[tuple[float, bytes]]) -> None:
        pace, chunk = Pace(random.Random(f"{self._seed}/{end}")), b"-"
        while chunk:  # the last one is empty: this end has closed its side
            try:
                chunk = await self._ends[end][0].read(_CHUNK)
            except OSError:  # an end of a half-open connection has given up
                if not self._lost:
                    raise
                chunk = b""
            now_s = asyncio.get_running_loop().time()
            await chunks.put((pace.due_s(now_s, self.conditions), chunk))

    async def _deliver(self, end: End, chunks: asyncio.Queue[tuple[float, bytes]]) -> None:
        writer, chunk = self._ends[_OTHER[end]][1], b"-"
        while chunk:
            due_s, chunk = await chunks.get()
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            await self._flows.wait()
            if not self._lost:
                writer.write(chunk) if chunk else writer.write_eof()
                await writer.drain()


class Proxy:
    """Listens inside ``async with``, and passes each connection on to its target.

    Args:
      target: host:port; may be changed, for new connections.
      host: address to listen on; loopback unless it is given.
      port: 0 takes any free one.
      seed: of jitter and resets, together with the number of the connection.

    Attributes:
      address: host:port of the proxy.
      conditions: those of new connections.
      connections: the open ones, the oldest first.
      accepted: number of all connections so far.
    """

    def __init__(
        self,
        target: str,
        conditions: Conditions = FINE,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
    ):
        self.target, self.conditions = target, conditions
        self.address, self.accepted = "", 0
        self.connections: list[Connection] = []
        self._listens, self._seed = (host, port), seed

    def change(self, **changes: Any) -> None:
        """Changes conditions of all open and all new connections."""
        self.conditions = replace(self.conditions, **changes)
        for connection in self.connections:
            connection.change(**changes)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listens)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in (tasks := [one.task for one in self.connections]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(f"{self._seed}/{self.accepted}", self.conditions)
        self.accepted += 1
        self.connections.append(connection)
        try:
            with suppress(asyncio.CancelledError):  # ours: a reset, or the end of the proxy
                await connection.run((reader, writer), self.target)
        finally:
            self.connections.remove(connection)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # it is closed already
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)
    writer.transport.abort()


class ThreadedProxy:
    """A proxy on an event loop and in a thread of its own, for code without one.

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
def threaded(target: str, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[ThreadedProxy]:
    """Runs a proxy until the end of the block; for the arguments see ``Proxy``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    proxy = Proxy(target, host=host, port=port)

    def wait(coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(_LIMIT_S)

    try:
        wait(proxy.__aenter__())
        try:
            yield ThreadedProxy(proxy, loop)
        finally:
            wait(proxy.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT_S)
        loop.close()
