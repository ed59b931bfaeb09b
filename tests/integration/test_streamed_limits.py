"""Limits of streamed weights: on names, sizes, disks and waits; and the turns of readers."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import grpc
import pytest
from doors import SECRETS
from streamed_parts import BODY, Sends, content, copy, held, part, served, serves, settings, version
from waiting import eventually

from rlax_plugin.base.errors import WeightsUnreadableError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.weights.local_copies import local_copies


async def test_a_worker_writes_nothing_that_a_server_may_not_list(tmp_path: Path) -> None:
    class Lists(Sends):
        async def Files(self, request: Any, context: Any) -> pb.FilesReply:
            return pb.FilesReply(files=[pb.File(name="../escaped", size=1)])

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        async with serves(tmp_path, kind=Lists) as (service, address):
            await service.publish(version(0, part(tmp_path, "0", body=b"x")))
            before = sorted(tmp_path.rglob("*"))
            with pytest.raises(WeightsUnreadableError, match="no plain relative path"):
                await copy(copies, address)
            assert service.asked == [] and sorted(tmp_path.rglob("*")) == before


async def test_a_full_disk_is_seen_before_the_first_byte(tmp_path: Path, monkeypatch: Any) -> None:
    class Full:
        free = 65 << 20

    monkeypatch.setattr("rlax_plugin.weights.local_copies.shutil.disk_usage", lambda place: Full)

    with local_copies(settings(tmp_path)) as copies:
        assert copies is not None
        async with serves(tmp_path) as (service, address):
            await service.publish(version(0, part(tmp_path, "0")))
            with pytest.raises(WeightsUnreadableError, match="has 65 MiB left, and part base"):
                await copy(copies, address)
            assert service.asked == []


async def status(call: Any) -> str:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_a_server_sends_only_what_is_listed_and_leased(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"key")
    published = version(0, part(tmp_path, "0"))
    async with served(tmp_path, published) as (_, address), held(address) as (client, one):

        async def fetch(within_s: float | None = 50.0, **changes: Any) -> str:
            good = {"lease": one.lease, "part": "base", "file": "small", "offset": 0}
            async with connect(address, SECRETS.of_worker) as connection:
                stub = rpc.ParameterServerStub(connection)
                request = pb.FetchRequest(**good | changes)
                return await status(stub.Fetch(request, timeout=within_s))

        assert await fetch() == "OK"
        assert await fetch(offset=5) == "OK"  # its end
        for file in ("../secret", "../../secret", str(tmp_path / "secret"), "", ".", "small/"):
            assert await fetch(file=file) == "INVALID_ARGUMENT", file
        for offset in (-1, 6, 2**62):
            assert await fetch(offset=offset) == "INVALID_ARGUMENT", offset
        for name in ("", "..", "../0", "adapter"):
            assert await fetch(part=name) == "INVALID_ARGUMENT", name
        assert await fetch(lease="x") == await fetch(lease="") == "NOT_FOUND"
        # A reader that never reads must not hold its place for ever.
        assert await fetch(within_s=None) == await fetch(within_s=999) == "INVALID_ARGUMENT"
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await client.files(dataclasses.replace(one, lease="x"), "base")


async def test_readers_wait_for_their_turn(tmp_path: Path) -> None:
    """Two of five have a stream at a time, and one reader has at most two streams."""
    published = version(0, part(tmp_path, "0"))

    open_at_once: list[int] = []

    def noted(chunk: pb.Chunk, number: int) -> pb.Chunk:
        open_at_once.append(service.streams._open.total())
        if open_at_once[-1] == 2:
            service.together = 0
        return chunk

    async with served(tmp_path, published, streams=2) as (service, address):
        service.most = 1  # each stands still after a chunk
        async with held(address) as (client, one):
            streams = [client.fetch(one, "base", "body", 0, 50.0) for _ in range(3)]
            first = [await anext(aiter(stream)) for stream in streams[:2]]
            assert [chunk.offset for chunk in first] == [0, 0]
            assert await status(streams[2]) == "RESOURCE_EXHAUSTED"
            for stream in streams:
                stream.cancel()
        await eventually(lambda: not service.streams._open.total())
        service.most, service.together, service.changed = 10**9, 2, noted

        async def reads(name: str) -> bytes:
            with local_copies(settings(tmp_path / name)) as copies:
                assert copies is not None
                placed = await copy(copies, address)
                return content(placed.parts[0])["body"]

        assert await asyncio.gather(*map(reads, "abcde")) == [BODY] * 5
        assert max(open_at_once) == 2
