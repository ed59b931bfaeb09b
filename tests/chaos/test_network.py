"""The proxy between processes: which bytes arrive, in which order, and what the two ends notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import LIMIT_S, eventually

from chaos.network import Conditions, Pace, Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def within_limit() -> None:
        await asyncio.wait_for(main(), LIMIT_S)

    asyncio.run(within_limit())


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


@asynccontextmanager
async def proxied(
    conditions: Conditions = Conditions(),  # noqa: B008  it is frozen
    seed: int = 0,
) -> AsyncIterator[tuple[Proxy, Target]]:
    target = Target()
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        async with Proxy(f"{host}:{port}", conditions, seed=seed) as proxy:
            yield proxy, target
    finally:
        server.close()


async def connected(proxy: Proxy) -> Streams:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def echoed(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    return await reader.readexactly(len(data))


# Delivery times, which are pure arithmetic.


def test_it_listens_where_it_is_told_to() -> None:
    async def main() -> None:
        async with proxied() as (inner, _), Proxy(inner.address, host="127.0.0.3") as outer:
            assert outer.address.startswith("127.0.0.3:")
            assert await echoed(await connected(outer), b"abc") == b"abc"

    run(main)


def test_nothing_overtakes_when_the_delay_ends() -> None:
    pace = Pace(random.Random(0))
    assert pace.due_s(0.0, Conditions(delay_s=3.0)) == 3.0
    assert pace.due_s(1.0, Conditions()) == 3.0
    assert pace.due_s(4.0, Conditions()) == 4.0


def test_jitter_is_of_the_seed_and_keeps_the_order() -> None:
    conditions = Conditions(delay_s=1.0, jitter_s=0.5)

    def times(seed: int) -> list[float]:
        pace = Pace(random.Random(seed))
        return [pace.due_s(0.1 * n, conditions) for n in range(50)]

    first = times(1)
    assert first == times(1) != times(2) and first == sorted(first)
    late_s = [due - 0.1 * n for n, due in enumerate(first)]
    assert min(late_s) >= 1.0 - 1e-9 and max(late_s) > 1.2 and len(set(first)) > 10


# Bytes.


@pytest.mark.property
@settings(max_examples=examples(25))
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    jitter_s=st.sampled_from([0.0, 0.002]),
    seed=st.integers(0, 100),
)
def test_all_bytes_arrive_in_order_and_so_does_the_end(
    chunks: list[bytes], jitter_s: float, seed: int
) -> None:
    async def main() -> None:
        conditions = Conditions(jitter_s=jitter_s)
        async with proxied(conditions, seed=seed) as (proxy, target):
            reader, writer = await connected(proxy)
            for chunk in chunks:
                writer.write(chunk)
                await asyncio.sleep(0)
            writer.write_eof()
            assert await reader.read() == b"".join(chunks)  # after the whole answer, its end
            assert bytes(target.read[0]) == b"".join(chunks) and target.ended == ["closed"]
            writer.close()
            await eventually(lambda: not proxy.connections)

    run(main)


# Faults.


def test_a_stall_holds_all_bytes_back_and_loses_none() -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            streams = reader, writer = await connected(proxy)
            assert await echoed(streams, b"before") == b"before"
            proxy.change(stalled=True)
            writer.write(b"during")
            later = await connected(proxy)
            later[1].write(b"later")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            assert [bytes(one) for one in target.read] == [b"before"]  # of the other not a sign
            assert proxy.connections[0].passed == {"caller": 6, "target": 6}
            proxy.change(stalled=False)
            assert await reader.readexactly(6) == b"during"
            assert await later[0].readexactly(5) == b"later"
            assert proxy.connections[0].passed == {"caller": 12, "target": 12}

    run(main)


def test_a_reset_is_ECONNRESET_at_both_ends() -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            streams = await connected(proxy)
            assert await echoed(streams, b"before") == b"before"
            proxy.connections[0].reset()
            with pytest.raises(ConnectionResetError):
                await streams[0].read(1)
            await eventually(lambda: target.ended == ["reset"])
            assert not proxy.connections
            assert await echoed(await connected(proxy), b"again") == b"again"

    run(main)


def test_of_a_half_open_connection_the_caller_notices_nothing() -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            streams = reader, writer = await connected(proxy)
            assert await echoed(streams, b"before") == b"before"
            proxy.connections[0].half_open()
            for _ in range(3):
                writer.write(b"lost")
                await writer.drain()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            assert bytes(target.read[0]) == b"before"
            assert target.ended == []
            # Those who connect again get through, and who gives up is gone for nobody but himself.
            another = await connected(proxy)
            assert await echoed(another, b"again") == b"again"
            writer.close()
            await asyncio.sleep(0.05)
            assert target.ended == []

    run(main)
