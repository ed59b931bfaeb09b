"""How the controller reaches a worker: over gRPC, or as an object in its own process."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import grpc

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Attempt, Key, Request, SideSpec
from rlax_plugin.rollout.fleet.replies import all_contributors
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.channels import describe, gone
from rlax_plugin.rpc.transport.doors import Connection
from rlax_plugin.rpc.transport.pieces import Arriving, Outgoing
from rlax_plugin.rpc.transport.wire import Told, key_from_proto, key_to_proto, told_by_reply


class CallError(Exception):
    """A worker has not answered all requests of a call.

    Attributes:
      kind: "rejected": the requests are wrong everywhere; "failed": this worker has failed; "gone":
        it has ended, or is about to leave.
    """

    def __init__(self, reason: str, kind: Literal["rejected", "failed", "gone"]):
        super().__init__(reason)
        self.kind: Literal["rejected", "failed", "gone"] = kind


class Heard(NamedTuple):
    """What a worker says of a request: a report or the answer, or that it has given it up.

    Attributes:
      news: of each sample what is new; nothing of a request that was given up.
      given_up: see ``GivenUp.tokens``; None: it was not given up.
    """

    key: Key
    news: Sequence[Told] = ()
    given_up: tuple[int, ...] | None = None

    @property
    def unfinished(self) -> bool:
        """True if an answer is still to follow."""
        return any(told.sampled.finish is None for told in self.news)


class WorkerLink(ABC):
    """Calls of one worker, on the controller's event loop."""

    @abstractmethod
    def generate(
        self, requests: Sequence[Request], name: str, side: Callable[[], Mapping[str, SideSpec]]
    ) -> AsyncGenerator[Heard]:
        """Has the worker generate; yields what it says until all requests are answered.

        Closing the iterator ends the generation of requests that are not answered.

        Args:
          name: of the worker, for messages and for ``Sampled.workers``.
          side: returns the side channels that it has declared.

        Raises:
          CallError: the worker has not answered all of them.
          WorkerError: it says something that cannot be an answer to them.
          CancelledError: the link was closed.
        """

    @abstractmethod
    async def give_up(self, unwanted: Iterable[Attempt], oldest: int, within_s: float) -> None:
        """Has the worker give up requests, and those begun with weights older than ``oldest``.

        An error is none of the caller's: a worker that is lost shows it otherwise.
        """

    def paused_s(self) -> float:
        """Seconds so far in which the worker could do nothing, as the trainer had its devices."""
        return 0.0

    @abstractmethod
    async def close(self, grace_s: float | None) -> None:
        """Ends the calls that are open after ``grace_s``; None: at once."""


class RemoteLink(WorkerLink):
    """A worker in another process.

    Args:
      paused_s: see ``paused_s``; None: the worker has devices of its own.

    Attributes:
      stub: makes the calls.
    """

    def __init__(self, connection: Connection, paused_s: Callable[[], float] | None = None):
        self._connection, self.stub = connection, rpc.RolloutStub(connection)
        self._paused_s = paused_s

    async def generate(
        self, requests: Sequence[Request], name: str, side: Callable[[], Mapping[str, SideSpec]]
    ) -> AsyncGenerator[Heard]:
        """See ``WorkerLink``."""
        asked = {request.key: request for request in requests}
        outgoing, arriving = Outgoing(requests), Arriving()
        # Without a timeout: each group has its own, and a worker that is silent is lost.
        stream = self.stub.Generate(outgoing)
        try:
            async for reply in stream:
                if (heard := _heard(reply, asked, arriving, name, side())) is not None:
                    yield heard
        except grpc.aio.AioRpcError as failure:
            rejected = failure.code() == grpc.StatusCode.INVALID_ARGUMENT
            kind = "rejected" if rejected else "gone" if gone(failure) else "failed"
            raise CallError(describe(failure), kind) from failure
        except asyncio.CancelledError:
            if outgoing.error is not None:  # gRPC only cancels the call
                raise outgoing.error from None
            raise

    async def give_up(self, unwanted: Iterable[Attempt], oldest: int, within_s: float) -> None:
        """See ``WorkerLink``."""
        attempts = [pb.Attempt(key=key_to_proto(key), attempt=number) for key, number in unwanted]
        request = pb.GiveUpRequest(unwanted=attempts, oldest=oldest)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.stub.GiveUp(request, timeout=within_s)

    def paused_s(self) -> float:
        """See ``WorkerLink``."""
        return 0.0 if self._paused_s is None else self._paused_s()

    async def close(self, grace_s: float | None) -> None:
        """See ``WorkerLink``."""
        await self._connection.close(grace_s)


def _heard(
    reply: pb.Reply,
    asked: Mapping[Key, Request],
    arriving: Arriving,
    name: str,
    side: Mapping[str, SideSpec],
) -> Heard | None:
    """Returns what a message says; None: the rest of it follows.

    Raises:
      WorkerError: it is garbled, or about a request that the worker was not sent.
    """
    try:
        key = key_from_proto(reply.key)
        arriving.note(key, reply)
    except ValueError as error:
        raise WorkerError(f"{name} sent a garbled answer: {error}") from error
    if (request := asked.get(key)) is None:
        raise WorkerError(f"{name} answered {key}, which it had not been sent")
    if reply.given_up:
        return Heard(key, given_up=tuple(reply.tokens))
    if (earlier := arriving.take(reply, request, name, side)) is None:
        return None
    workers = all_contributors(request, name)
    news = told_by_reply(reply, request, name, workers=workers, declared=side, earlier=earlier)
    return Heard(key, news)
