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
    """A server that keeps what it has read of each connection, and may echo it."""

    def __init__(self, echoes: bool = True):
        self.echoes = echoes
        self.read: list[bytearray] = []
        self.ended: list[str] = []  # how each connection ended
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.read.append(kept := bytearray())
        self.writers.append(writer)
        try:
            while data := await reader.read(1 << 16):
                kept += data
                if self.echoes:
                    writer.write(data)
                    await writer.drain()
            self.ended.append("closed")
        except ConnectionResetError:
            self.ended.append("reset")
        writer.close()


@asynccontextmanager
async def proxied(
    conditions: Conditions = Conditions(),  # noqa: B008  it is frozen
    echoes: bool = True,
    seed: int = 0,
) -> AsyncIterator[tuple[Proxy, Target]]:
    target = Target(echoes)
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


def test_delay_adds_to_the_time_that_the_throughput_takes() -> None:
    pace, conditions = Pace(random.Random(0)), Conditions(delay_s=0.5, bytes_per_s=100)
    # 50 bytes take 0.5 s to send, and the next ones begin when those have been sent.
    assert pace.due_s(10.0, 50, conditions) == 11.0
    assert pace.due_s(10.0, 100, conditions) == 12.0
    assert pace.due_s(20.0, 100, conditions) == 21.5  # the line was free again


def test_nothing_overtakes_when_the_delay_ends() -> None:
    pace = Pace(random.Random(0))
    assert pace.due_s(0.0, 1, Conditions(delay_s=3.0)) == 3.0
    assert pace.due_s(1.0, 1, Conditions()) == 3.0
    assert pace.due_s(4.0, 1, Conditions()) == 4.0


def test_jitter_is_of_the_seed_and_keeps_the_order() -> None:
    conditions = Conditions(delay_s=1.0, jitter_s=0.5)

    def times(seed: int) -> list[float]:
        pace = Pace(random.Random(seed))
        return [pace.due_s(0.1 * n, 1, conditions) for n in range(50)]

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
    bytes_per_s=st.sampled_from([0.0, 2e6]),
    seed=st.integers(0, 100),
)
def test_all_bytes_arrive_in_order_and_so_does_the_end(
    chunks: list[bytes], jitter_s: float, bytes_per_s: float, seed: int
) -> None:
    async def main() -> None:
        conditions = Conditions(jitter_s=jitter_s, bytes_per_s=bytes_per_s)
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


def test_more_bytes_than_the_proxy_holds_wait_in_the_sender() -> None:
    data = random.Random(3).randbytes(24 << 20)

    async def main() -> None:
        async with proxied(echoes=False) as (proxy, target):
            _, writer = await connected(proxy)
            (await _first(proxy)).change(stalled=True)
            writer.write(data)
            sending = asyncio.ensure_future(writer.drain())
            await asyncio.sleep(0.1)
            assert not sending.done()
            proxy.change(stalled=False)
            await sending
            writer.write_eof()
            await eventually(lambda: target.ended == ["closed"])
            assert bytes(target.read[0]) == data

    run(main)


async def _first(proxy: Proxy) -> object:
    return (await eventually(lambda: proxy.connections))[0]


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


def test_one_connection_is_stalled_and_another_is_not() -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            one, other = await connected(proxy), await connected(proxy)
            assert await echoed(one, b"1") + await echoed(other, b"2") == b"12"
            proxy.connections[0].change(stalled=True)
            one[1].write(b"held")
            assert await echoed(other, b"passed") == b"passed"
            assert bytes(target.read[0]) == b"1"
            proxy.connections[0].change(stalled=False)
            assert await one[0].readexactly(4) == b"held"

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


def test_a_reset_of_one_end_reaches_the_other() -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            streams = await connected(proxy)
            assert await echoed(streams, b"before") == b"before"
            target.writers[0].transport.abort()  # with its socket's linger unset: a FIN
            assert await streams[0].read() == b""
        async with proxied() as (proxy, target):  # and the proxy's own end
            streams = await connected(proxy)
            await echoed(streams, b"before")
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)

    run(main)


def test_a_target_that_is_not_there_is_a_reset() -> None:
    async def main() -> None:
        async with proxied() as (proxy, _):
            proxy.target = "127.0.0.1:1"
            streams = await connected(proxy)
            with pytest.raises(ConnectionResetError):
                await streams[0].read(1)

    run(main)


def test_connections_are_reset_at_ages_of_the_seed() -> None:
    async def ages(seed: int) -> list[float]:
        loop, found = asyncio.get_running_loop(), []

        def call_later(delay: float, *rest: object) -> asyncio.TimerHandle:
            found.append(delay)
            return asyncio.BaseEventLoop.call_later(loop, delay, *rest)  # type: ignore[arg-type]

        async with proxied(Conditions(resets_s=(0.01, 0.03)), seed=seed) as (proxy, _):
            loop.call_later = call_later  # type: ignore[method-assign]
            for _ in range(3):
                streams = await connected(proxy)
                with pytest.raises(ConnectionResetError):
                    await streams[0].read(1)
            del loop.call_later
        return [age for age in found if 0.01 <= age <= 0.03]

    async def main() -> None:
        first, again, another = await ages(1), await ages(1), await ages(2)
        assert len(set(first)) == 3 and first == again != another

    run(main)


def test_resets_end_when_they_are_turned_off() -> None:
    async def main() -> None:
        async with proxied(Conditions(resets_s=(0.2, 0.2))) as (proxy, _):
            streams = await connected(proxy)
            await echoed(streams, b"young")
            proxy.change(resets_s=None)
            await asyncio.sleep(0.3)
            assert await echoed(streams, b"old") == b"old"

    run(main)


@pytest.mark.parametrize("gone", [None, "target"])
def test_of_a_half_open_connection_the_caller_notices_nothing(gone: str | None) -> None:
    async def main() -> None:
        async with proxied() as (proxy, target):
            streams = reader, writer = await connected(proxy)
            assert await echoed(streams, b"before") == b"before"
            proxy.connections[0].half_open(gone)  # type: ignore[arg-type]
            if gone:
                await eventually(lambda: target.ended == ["reset"])
            for _ in range(3):
                writer.write(b"lost")
                await writer.drain()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            assert bytes(target.read[0]) == b"before"
            assert target.ended == ["reset"] * (gone is not None)
            # Those who connect again get through, and who gives up is gone for nobody but himself.
            another = await connected(proxy)
            assert await echoed(another, b"again") == b"again"
            writer.close()
            await asyncio.sleep(0.05)
            assert target.ended == ["reset"] * (gone is not None)

    run(main)


def test_a_limited_throughput_cuts_bytes_into_small_pieces() -> None:
    """So that a change of the conditions holds soon, and not after a large chunk."""

    async def main() -> None:
        async with proxied(Conditions(bytes_per_s=1000.0), echoes=False) as (proxy, target):
            _, writer = await connected(proxy)
            writer.write(bytes(100_000))  # would take 100 s
            await eventually(lambda: target.read and len(target.read[0]) >= 10)
            assert len(target.read[0]) < 50_000
            proxy.change(bytes_per_s=0.0)
            writer.write_eof()
            await eventually(lambda: target.ended == ["closed"])
            assert len(target.read[0]) == 100_000

    run(main)
