"""The proxy between processes has the faults that it is told to have, or a run shows nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from waiting import eventually

from chaos.network import Conditions, Pace, Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Target:
    """A server that echoes what it has read of each connection, and keeps it."""

    def __init__(self) -> None:
        self.read: list[bytearray] = []
        self.ended: list[str] = []  # how each connection ended

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.read.append(kept := bytearray())
        try:
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
                await writer.drain()
            self.ended.append("closed")
        except ConnectionResetError:
            self.ended.append("reset")
        writer.close()


def proxied(main: Callable[[Proxy, Target], Awaitable[None]]) -> None:
    """Runs a test with a proxy before a target."""

    async def serving() -> None:
        target = Target()
        server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with Proxy(f"{host}:{port}") as proxy:
            await main(proxy, target)
        server.close()

    asyncio.run(serving())


async def connected(proxy: Proxy) -> Streams:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def echoed(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    return await reader.readexactly(len(data))


def test_stall_holds_all_bytes_back_and_loses_none() -> None:
    async def main(proxy: Proxy, target: Target) -> None:
        streams = reader, writer = await connected(proxy)
        assert await echoed(streams, b"before") == b"before"
        proxy.change(stalled=True)
        writer.write(b"during")
        later = await connected(proxy)
        later[1].write(b"later")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert [bytes(kept) for kept in target.read] == [b"before"]  # of the other not a sign
        proxy.change(stalled=False)
        assert await reader.readexactly(6) == b"during"
        assert await later[0].readexactly(5) == b"later"

    proxied(main)


def test_reset_is_ECONNRESET_at_both_ends() -> None:
    async def main(proxy: Proxy, target: Target) -> None:
        streams = await connected(proxy)
        assert await echoed(streams, b"before") == b"before"
        proxy.connections[0].reset()
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)
        await eventually(lambda: target.ended == ["reset"])
        assert not proxy.connections
        assert await echoed(await connected(proxy), b"again") == b"again"

    proxied(main)


def test_nothing_overtakes_when_the_delay_ends() -> None:
    pace = Pace(random.Random(0))
    assert pace.due_s(0.0, Conditions(delay_s=3.0)) == 3.0
    assert pace.due_s(1.0, Conditions()) == 3.0
    assert pace.due_s(4.0, Conditions()) == 4.0
