"""Weights that the parameter server sends, over real gRPC: resumed, verified, shared."""

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from streamed_parts import (
    BODY,
    MIB,
    content,
    copy,
    held,
    part,
    received,
    served,
    serves,
    settings,
    version,
)
from waiting import eventually

from rlax_plugin.base.errors import DeadlineError, WeightsUnreadableError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.weights.local_copies import local_copies
from rlax_plugin.weights.verification import Reading


def directories(root: Path) -> list[str]:
    return [path.name for path in (root / "copies").rglob("*") if (path / "body").exists()]


async def test_parts_arrive_whole_once_and_old_ones_are_deleted(tmp_path: Path) -> None:
    base = part(tmp_path, "base")
    adapters = [part(tmp_path, f"{n}", "adapter", body=b"%d" % n * 100) for n in range(3)]

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        assert (tmp_path / "copies").stat().st_mode & 0o777 == 0o700
        async with serves(tmp_path) as (service, address):
            received, places = [], []
            for number, adapter in enumerate(adapters):
                published, reading = version(number, base, adapter), Reading()
                await service.publish(published)
                placed = await copy(copies, address, reading)
                await copies.keep_only(published)
                for given, here in zip(published.parts, placed.parts, strict=True):
                    assert content(here) == content(given) and given.path != here.path
                    assert dataclasses.replace(here, path=given.path) == given
                received.append(reading.figures()["stream_bytes"])
                places.append(placed.paths)
            whole = len(BODY) + len(b"small")
            assert received == [whole + 100, 100, 100]
            assert service.streams.sent_bytes == whole + 300
            # The base stays where it is, so an engine knows it again.
            assert len({base for base, _ in places}) == 1 and len(set(places)) == 3
            assert sorted(directories(tmp_path)) == sorted(Path(p).name for p in places[-1])
    assert not list((tmp_path / "copies").iterdir())


async def test_a_download_goes_on_at_its_byte_after_the_server_was_killed(tmp_path: Path) -> None:
    index = tmp_path / "index.json"

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        stack = AsyncExitStack()
        async with serves(tmp_path, index=index) as (service, address):
            await service.publish(version(0, part(tmp_path, "0")))
            service.most = 3
            client, one = await stack.enter_async_context(held(address))
            reading = Reading()
            copying = asyncio.ensure_future(copies.copy(client, one, reading))
            await eventually(lambda: received(tmp_path) == 3 * MIB)
            first = one.lease
        port = int(address.rsplit(":", 1)[1])
        async with serves(tmp_path, index=index, port=port) as (service, _):
            placed = await copying
            assert service.asked[-1] == ("body", 3 * MIB) and one.lease != first
            assert service.streams.sent_bytes == len(BODY) + 5 - 3 * MIB
            assert content(placed.parts[0])["body"] == BODY
            assert reading.stream_bytes == len(BODY) + 5
            await stack.aclose()


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


async def test_a_chunk_with_a_flipped_bit_is_fetched_again_alone(tmp_path: Path) -> None:
    def once(chunk: pb.Chunk, number: int) -> pb.Chunk:
        if number == 3:
            chunk.data = flipped(chunk.data)
        return chunk

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        async with serves(tmp_path) as (service, address):
            service.changed = once
            await service.publish(version(0, part(tmp_path, "0")))
            placed = await copy(copies, address)
            assert content(placed.parts[0])["body"] == BODY
            assert service.asked == [("body", 0), ("body", 2 * MIB)]


async def test_bytes_that_stay_wrong_are_no_reason_to_distrust_the_worker(tmp_path: Path) -> None:
    """Every third chunk is wrong."""

    def wrong(chunk: pb.Chunk, number: int) -> pb.Chunk:
        if chunk.offset == 2 * MIB:
            chunk.data = flipped(chunk.data)
        return chunk

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        async with serves(tmp_path) as (service, address):
            service.changed = wrong
            await service.publish(version(0, part(tmp_path, "0")))
            wanted = "has a wrong checksum, 3 times in a row"
            with pytest.raises(WeightsUnreadableError, match=wanted):
                await copy(copies, address)
            assert service.asked == [("body", 0), *[("body", 2 * MIB)] * 2]
            del service.changed
            placed = await copy(copies, address)
            assert content(placed.parts[0])["body"] == BODY
            assert service.asked[-1] == ("body", 2 * MIB)


async def test_server_that_stays_away_ends_the_download_at_weights_s(tmp_path: Path) -> None:
    published = version(7, part(tmp_path, "7"))

    with local_copies(settings(tmp_path, weights_s=4.0)) as copies:
        assert copies is not None
        async with AsyncExitStack() as stack:
            async with served(tmp_path, published) as (service, address):
                service.most = 1
                client, one = await stack.enter_async_context(held(address))
                copying = asyncio.ensure_future(copies.copy(client, one, Reading()))
                await eventually(lambda: received(tmp_path) == MIB)
            said = r"streaming version 7 \(1 MiB of 5 MiB .* UNAVAILABLE.*deadlines.weights_s"
            with pytest.raises(DeadlineError, match=said):
                await copying


async def test_a_version_that_is_gone_is_unreadable(tmp_path: Path) -> None:
    """The lease has ended, and the server knows no such version any more."""
    published = version(0, part(tmp_path, "0"))

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        served_ = served(tmp_path, published, keep=1)
        async with served_ as (service, address), held(address) as (client, one):
            await service.publish(version(1, part(tmp_path, "1")))
            request = pb.ReleaseRequest(lease=one.lease)
            await client._stub.Release(request, timeout=60)
            with pytest.raises(WeightsUnreadableError, match="version 0 is gone"):
                await copies.copy(client, one, Reading())


async def test_a_stream_that_stands_still_is_given_up_and_old_parts_are_deleted(tmp_path) -> None:
    """Nothing arrives for ``rpc_s``: the worker asks for the rest, or for a newer version."""

    with local_copies(settings(tmp_path, rpc_s=3.0)) as copies:
        assert copies is not None
        async with serves(tmp_path) as (service, address):
            await service.publish(version(0, part(tmp_path, "0")))
            service.most = 2
            async with held(address) as (client, one):
                copying = asyncio.ensure_future(copies.copy(client, one, Reading()))
                await eventually(lambda: ("body", 4 * MIB) in service.asked)
                assert service.asked[:2] == [("body", 0), ("body", 2 * MIB)]
                copying.cancel()
                await asyncio.wait([copying])
            (before,) = directories(tmp_path)
            service.most = 10**9
            await service.publish(version(1, part(tmp_path, "1")))
            placed = await copy(copies, address)
            assert content(placed.parts[0])["body"] == BODY
            assert directories(tmp_path) == [Path(placed.paths[0]).name] != [before]
