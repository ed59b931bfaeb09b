"""Parts of versions on a disk, and a parameter server that sends them as a test wants it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from doors import SECRETS
from parameter_servers import LIMIT_S, Deleted, client_of, serving
from sections import section_with

from rlax_plugin.base.types import TensorSpec, VersionPart, WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.weights.client import Held, ParameterServerClient
from rlax_plugin.weights.local_copies import LocalCopies
from rlax_plugin.weights.parameter_server import ParameterServer
from rlax_plugin.weights.streams import CHUNK_BYTES
from rlax_plugin.weights.verification import Reading

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
        self.together = 0  # streams that must be open, for one to go on behind a chunk

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        self.asked.append((request.file, request.offset))
        left = self.most
        async for chunk in super().Fetch(request, context):
            if not left:
                await asyncio.sleep(LIMIT_S)
            self.sent, left = self.sent + 1, left - 1
            yield self.changed(chunk, self.sent)
            while self.streams._open.total() < self.together:
                await asyncio.sleep(0.001)


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


def received(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "copies").rglob("body"))
