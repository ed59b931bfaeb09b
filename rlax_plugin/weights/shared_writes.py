"""Weight versions that all hosts write together: the work of host 0.

A part of a version becomes visible only after every host has said that its chunks are there, and
only if they are as many as the part has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from rlax_plugin.base.concurrency.changes import Changes
from rlax_plugin.base.concurrency.loop_thread import result_within
from rlax_plugin.base.errors import ConfigError, DeadlineError, WeightsError, WeightsUnwritableError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.rpc import rlax_pb2 as pb

log = logging.getLogger("rlax.controller")

_KEY = "rlax.deadlines.weights_s"
_MOST_CHUNKS = 1 << 40


@dataclass(slots=True)
class _Writing:
    """A part that is being written.

    Attributes:
      version: its version.
      part: its name.
      directory: into which every host writes.
      told: host -> number of chunks that it has written, or why it could not.
    """

    version: int
    part: str
    directory: str
    told: dict[int, int | str] = field(default_factory=dict)


def shared_writer(store: WeightStore, section: RlaxSection) -> WeightStore:
    """The weight store of a config, into which several hosts can write.

    Raises:
      ConfigError: it cannot be written by several hosts.
    """
    if store.shared_writing:
        return store
    name = section.weights.store.name
    reason = "cannot be written by several hosts: choose orbax, or train on one host"
    raise ConfigError("rlax.weights.store", name, reason)


class SharedWrites:
    """Writes parts of versions with the other hosts.

    Its methods are called on the event loop, except ``write``.

    Args:
      store: the weight store.
      hosts: number of hosts, host 0 included.
      loop: the event loop.
      deadline_s: time limit for one part, ``rlax.deadlines.weights_s``.
    """

    def __init__(
        self, store: WeightStore, hosts: int, loop: asyncio.AbstractEventLoop, deadline_s: float
    ):
        self._store, self._hosts = store, hosts
        self._loop, self._deadline_s = loop, deadline_s
        self._changes = Changes()
        self._writing: _Writing | None = None
        self._visible: tuple[int, set[str]] = (-1, set())  # parts of the newest version

    def write(self, version: int, part: str, path: str, arrays: Arrays) -> None:
        """Writes a part, see ``WeightStore.save``; called on the publisher's thread.

        Raises:
          WeightsUnwritableError: this or another host could not write; it may work at another path.
          WeightsError: the hosts wrote another number of chunks than the part has.
          DeadlineError: a host has not written in time.
        """
        directory = self._store.begin(path, arrays)
        committed = False
        try:
            writing = _Writing(version, part, directory)
            self._on_loop(self._begun(writing), writing)
            own = self._store.write(directory, arrays)
            reached(FaultPoint.OWN_CHUNKS_WRITTEN)
            others = self._on_loop(self._all_told(writing), writing)
            self._store.commit(path, directory, arrays, own + others)
            committed = True
            self._on_loop(self._ended(writing), writing)
        finally:
            if not committed:
                self._loop.call_soon_threadsafe(self._give_up)
                self._abandon(path)

    def _abandon(self, path: str) -> None:
        """Removes the remains of an attempt, whose own error decides what happens next."""
        try:
            self._store.abandon(path)
        except (WeightsError, OSError) as error:
            log.error("the remains of an attempt to write stay on disk for now: %s", error)

    def _on_loop[T](self, work: Coroutine[Any, Any, T], of: _Writing) -> T:
        def late(given_s: float) -> DeadlineError:
            silent = [h for h in range(1, self._hosts) if h not in of.told]
            who = " and ".join(f"host {host}" for host in silent) or "the event loop"
            what = f"writing version {of.version} together: waiting for {who}"
            return DeadlineError(what, given_s, _KEY)

        return result_within(work, self._loop, self._deadline_s, late)

    async def _begun(self, writing: _Writing) -> None:
        self._writing = writing
        self._changes.wake()

    async def _all_told(self, writing: _Writing) -> int:
        """Number of chunks that the other hosts have written.

        Raises:
          WeightsUnwritableError: one of them could not.
        """

        def look() -> bool | None:
            failed = any(isinstance(told, str) for told in writing.told.values())
            return True if failed or len(writing.told) == self._hosts - 1 else None

        await self._changes.until(look, 2 * self._deadline_s)  # its caller gives it up before
        for host, told in writing.told.items():
            if isinstance(told, str):
                raise WeightsUnwritableError(f"host {host}: {told}")
        return sum(told for told in writing.told.values() if isinstance(told, int))

    async def _ended(self, writing: _Writing) -> None:
        version, parts = self._visible
        kept = parts if version == writing.version else set()
        self._visible = writing.version, {*kept, writing.part}
        self._writing = None
        self._changes.wake()

    def _give_up(self) -> None:
        self._writing = None
        self._changes.wake()

    def skip(self, version: WeightVersion) -> None:
        """Tells the other hosts that a version is not written."""
        self._visible = version.version, {part.name for part in version.parts}
        self._changes.wake()

    async def answer(self, request: pb.ChunksRequest, within_s: float) -> pb.ChunksReply:
        """Answers a host that asks where to write a part, or says that it has.

        Raises:
          WeightsError: the number of chunks cannot be true.
        """
        writing = self._writing
        if request.written and writing is not None and request.written == writing.directory:
            if not 0 <= request.chunks < _MOST_CHUNKS:
                raise WeightsError(
                    f"host {request.host} says that it wrote {request.chunks} chunks"
                )
            failure = one_line(request.failure)
            writing.told.setdefault(request.host, failure or request.chunks)
            self._changes.wake()

        def look() -> pb.ChunksReply | None:
            version, parts = self._visible
            if version > request.version or (version == request.version and request.part in parts):
                return pb.ChunksReply(done=True)
            now = self._writing
            if now is None or (now.version, now.part) != (request.version, request.part):
                return None
            if request.host in now.told:
                return None
            return pb.ChunksReply(directory=now.directory)

        return await self._changes.until(look, within_s) or pb.ChunksReply()
