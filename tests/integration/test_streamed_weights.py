"""Weights that the parameter server sends, over real gRPC: resumed, verified, shared, in turns."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from doors import SECRETS
from parameter_servers import LIMIT_S, Deleted, client_of, run, serving
from sections import section_with
from waiting import eventually

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError, DeadlineError, WeightsUnreadableError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.doors import connect
from rlax_plugin.types import TensorSpec, VersionPart, WeightVersion
from rlax_plugin.weights.client import Held, ParameterServerClient
from rlax_plugin.weights.local_copies import LocalCopies, local_copies
from rlax_plugin.weights.parameter_server import ParameterServer
from rlax_plugin.weights.part_files import CHUNK_BYTES, crc32c
from rlax_plugin.weights.taking import Reading

MIB = CHUNK_BYTES
BODY = os.urandom(5 * MIB + 7)


def part(root: Path, directory: str, name: str = "base", **files: bytes) -> VersionPart:
    """A part on the disk, of random bytes unless files are given."""
    place = root / "weights" / directory
    place.mkdir(parents=True)
    files = files or {"body": BODY, "empty": b"", "small": b"small"}
    for file, data in files.items():
        (place / file).write_bytes(data)
    size = sum(map(len, files.values()))
    return VersionPart(name, str(place), {f"{name}.w": TensorSpec((size,), "uint8", 0)})


def version(number: int, *parts: VersionPart) -> WeightVersion:
    return WeightVersion(number, number, parts)


def settings(root: Path, **deadlines: float) -> RlaxSection:
    weights = {"transfer": "stream", "stream_dir": str(root / "copies")}
    return section_with(weights=weights, deadlines={"weights_s": 60.0, "rpc_s": 60.0} | deadlines)


class Sends(ParameterServer):
    """Notes what is asked for, and sends what ``changed`` makes of it.

    Attributes:
      asked: file and first byte of each stream.
      changed: chunk and its number, counted over all streams, to the chunk that is sent.
    """

    changed: Callable[[pb.Chunk, int], pb.Chunk] = staticmethod(lambda chunk, number: chunk)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.asked: list[tuple[str, int]] = []
        self.sent = 0
        self.most = 10**9  # chunks of a stream, behind which it stands still

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        self.asked.append((request.file, request.offset))
        left = self.most
        async for chunk in super().Fetch(request, context):
            if not left:
                await asyncio.sleep(LIMIT_S)
            self.sent, left = self.sent + 1, left - 1
            yield self.changed(chunk, self.sent)


def serves(root: Path, **kwargs: Any) -> Any:
    kwargs = {"kind": Sends, "published_in": str(root / "weights")} | kwargs
    return serving(Deleted(), **kwargs)


@asynccontextmanager
async def served(root: Path, published: WeightVersion, **kwargs: Any) -> AsyncIterator[Any]:
    async with serves(root, **kwargs) as (service, address):
        await service.publish(published)
        yield service, address


@asynccontextmanager
async def held(address: str) -> AsyncIterator[tuple[ParameterServerClient, Held]]:
    async with client_of(address, SECRETS.of_worker) as client, client.hold() as one:
        yield client, one


async def copy(copies: LocalCopies, address: str, reading: Reading | None = None) -> WeightVersion:
    async with held(address) as (client, one):
        return await copies.copy(client, one, reading or Reading())


def content(one: VersionPart) -> dict[str, bytes]:
    files = (path for path in Path(one.path).rglob("*") if path.is_file())
    return {str(path.relative_to(one.path)): path.read_bytes() for path in files}


def directories(root: Path) -> list[str]:
    return [path.name for path in (root / "copies").rglob("*") if (path / "body").exists()]


def test_parts_arrive_whole_once_and_old_ones_are_deleted(tmp_path: Path) -> None:
    base = part(tmp_path, "base")
    adapters = [part(tmp_path, f"{n}", "adapter", body=b"%d" % n * 100) for n in range(3)]

    async def main() -> None:
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

    run(main())


def test_a_download_goes_on_at_its_byte_after_the_server_was_killed(tmp_path: Path) -> None:
    index = tmp_path / "index.json"

    async def main() -> None:
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

    run(main())


def received(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "copies").rglob("body"))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_chunk_with_a_flipped_bit_is_fetched_again_alone(tmp_path: Path) -> None:
    def once(chunk: pb.Chunk, number: int) -> pb.Chunk:
        if number == 3:
            chunk.data = flipped(chunk.data)
        return chunk

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            async with serves(tmp_path) as (service, address):
                service.changed = once
                await service.publish(version(0, part(tmp_path, "0")))
                placed = await copy(copies, address)
                assert content(placed.parts[0])["body"] == BODY
                assert service.asked == [("body", 0), ("body", 2 * MIB)]

    run(main())


@pytest.mark.parametrize("honest", [False, True])
def test_bytes_that_stay_wrong_are_no_reason_to_distrust_the_worker(
    tmp_path: Path, honest: bool
) -> None:
    """Every third chunk is wrong; where its checksum fits, the file's digest tells."""

    def wrong(chunk: pb.Chunk, number: int) -> pb.Chunk:
        if chunk.offset == 2 * MIB:
            chunk.data = flipped(chunk.data)
            chunk.crc32c = crc32c(chunk.data) if honest else chunk.crc32c
        return chunk

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            async with serves(tmp_path) as (service, address):
                service.changed = wrong
                await service.publish(version(0, part(tmp_path, "0")))
                reason = "another digest than listed" if honest else "has a wrong checksum"
                with pytest.raises(WeightsUnreadableError, match=f"{reason}, 3 times in a row"):
                    await copy(copies, address)
                again = 0 if honest else 2 * MIB
                assert service.asked == [("body", 0), *[("body", again)] * 2]
                del service.changed
                placed = await copy(copies, address)
                assert content(placed.parts[0])["body"] == BODY
                assert service.asked[-1] == ("body", again)

    run(main())


def lists(*files: tuple[str, int]) -> list[pb.File]:
    return [pb.File(name=n, size=s, sha256=hashlib.sha256(bytes(s)).digest()) for n, s in files]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (lists(("../escaped", 1)), "no plain relative path"),
        (lists(("/tmp/escaped", 1)), "no plain relative path"),
        (lists(("a/../../escaped", 1)), "no plain relative path"),
        (lists(("body", 3_000_000)), "its tensors allow"),
        ([pb.File(name="body", size=1 << 62, sha256=bytes(32))], "its tensors allow"),
        ([], "has no files"),
    ],
)
def test_a_worker_writes_nothing_that_a_server_may_not_list(
    tmp_path: Path, files: list[pb.File], reason: str
) -> None:
    class Lists(Sends):
        async def Files(self, request: Any, context: Any) -> pb.FilesReply:
            return pb.FilesReply(files=files)

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            async with serves(tmp_path, kind=Lists) as (service, address):
                await service.publish(version(0, part(tmp_path, "0", body=b"x")))
                before = sorted(tmp_path.rglob("*"))
                with pytest.raises(WeightsUnreadableError, match=reason):
                    await copy(copies, address)
                assert service.asked == [] and sorted(tmp_path.rglob("*")) == before

    run(main())


def test_a_full_disk_is_seen_before_the_first_byte(tmp_path: Path, monkeypatch: Any) -> None:
    class Full:
        free = 65 << 20

    monkeypatch.setattr("rlax_plugin.weights.part_download.shutil.disk_usage", lambda place: Full)

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            async with serves(tmp_path) as (service, address):
                await service.publish(version(0, part(tmp_path, "0")))
                with pytest.raises(WeightsUnreadableError, match="has 65 MiB left, and part base"):
                    await copy(copies, address)
                assert service.asked == []

    run(main())


async def status(call: Any) -> str:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def test_a_server_sends_only_what_is_listed_and_leased(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "secret").write_bytes(b"key")
        published = version(0, part(tmp_path, "0"))
        async with served(tmp_path, published) as (_, address), held(address) as (client, one):

            async def fetch(within_s: float | None = 10.0, **changes: Any) -> str:
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

    run(main())


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_in_a_part_is_not_followed(tmp_path: Path, linked: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"key")
    published = version(0, part(tmp_path, "0"))
    target = secret / "key" if linked == "file" else secret
    (tmp_path / "weights/0/link").symlink_to(target)

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            async with served(tmp_path, published) as (service, address):
                with pytest.raises(WeightsUnreadableError, match="0/link is a link"):
                    await copy(copies, address)
                assert service.asked == []

    run(main())


def test_readers_wait_for_their_turn(tmp_path: Path) -> None:
    """Two of five have a stream at a time, and one reader has at most two streams."""
    published = version(0, part(tmp_path, "0"))

    async def main() -> None:
        open_at_once: list[int] = []

        def noted(chunk: pb.Chunk, number: int) -> pb.Chunk:
            open_at_once.append(service.streams._open.total())
            return chunk

        async with served(tmp_path, published, streams=2) as (service, address):
            service.most = 1  # each stands still after a chunk
            async with held(address) as (client, one):
                streams = [client.fetch(one, "base", "body", 0, 10.0) for _ in range(3)]
                first = [await anext(aiter(stream)) for stream in streams[:2]]
                assert [chunk.offset for chunk in first] == [0, 0]
                assert await status(streams[2]) == "RESOURCE_EXHAUSTED"
                for stream in streams:
                    stream.cancel()
            await eventually(lambda: not service.streams._open.total())
            service.most, service.changed = 10**9, noted

            async def reads(name: str) -> bytes:
                with local_copies(settings(tmp_path / name)) as copies:
                    assert copies is not None
                    placed = await copy(copies, address)
                    return content(placed.parts[0])["body"]

            assert await asyncio.gather(*map(reads, "abcde")) == [BODY] * 5
            assert max(open_at_once) == 2

    run(main())


def test_a_server_that_stays_away_ends_with_what_would_have_been_enough(tmp_path: Path) -> None:
    published = version(7, part(tmp_path, "7"))

    async def main() -> None:
        with local_copies(settings(tmp_path, weights_s=1.0)) as copies:
            assert copies is not None
            async with AsyncExitStack() as stack:
                async with served(tmp_path, published) as (service, address):
                    service.most = 1
                    client, one = await stack.enter_async_context(held(address))
                    copying = asyncio.ensure_future(copies.copy(client, one, Reading()))
                    await eventually(lambda: received(tmp_path) == MIB)
                said = (
                    r"streaming version 7 \(1 MiB of 5 MiB have arrived; the last failure: "
                    r"UNAVAILABLE.*\) took longer than 1 s: it would have needed about 5 s "
                    r"\(set rlax.deadlines.weights_s"
                )
                with pytest.raises(DeadlineError, match=said):
                    await copying

    run(main())


def test_weights_on_an_object_store_are_not_streamed(tmp_path: Path) -> None:
    published = version(0, VersionPart("base", "gs://bucket/weights/0"))

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            there = "gs://bucket/weights"
            async with served(tmp_path, published, published_in=there) as (_, address):
                with pytest.raises(ConfigError, match="set it to path, so that the worker reads"):
                    await copy(copies, address)
                async with held(address) as (client, one):
                    with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION"):
                        await client.files(one, "base")

    run(main())


def test_a_version_that_is_gone_is_unreadable(tmp_path: Path) -> None:
    """The lease has ended, and the server knows no such version any more."""
    published = version(0, part(tmp_path, "0"))

    async def main() -> None:
        with local_copies(settings(tmp_path)) as copies:
            assert copies is not None
            served_ = served(tmp_path, published, keep=1)
            async with served_ as (service, address), held(address) as (client, one):
                await service.publish(version(1, part(tmp_path, "1")))
                request = pb.ReleaseRequest(lease=one.lease)
                await client._stub.Release(request, timeout=10)
                with pytest.raises(WeightsUnreadableError, match="version 0 is gone"):
                    await copies.copy(client, one, Reading())

    run(main())
