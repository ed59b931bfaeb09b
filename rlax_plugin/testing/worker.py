"""A worker without a process: the Rollout service of ``rlax.proto`` over an engine, in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from rlax_plugin.errors import WorkerError
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.callers import Callers
from rlax_plugin.rpc.certificate import new_identity
from rlax_plugin.rpc.doors import Door, listen
from rlax_plugin.rpc.pieces import read_requests, reply_messages
from rlax_plugin.rpc.secret import Secret, new_token
from rlax_plugin.rpc.wire import request_from_proto
from rlax_plugin.types import Key, Sampled

_LIMITS: Any = {"most_requests": 1 << 16, "most_bytes": 1 << 30, "within_s": 60.0}


class FakeWorker(rpc.RolloutServicer):
    """Serves on a free loopback port inside ``async with``; rejects what its engine rejects.

    Attributes:
      address: host:port.
      secret: secret with which it is called.
      keys: keys of all requests, in order.

    Args:
      engine: such as a ``FakeEngine``, which checks requests.
    """

    def __init__(self, engine: RolloutEngine):
        self.address = ""
        self.keys: list[Key] = []
        self._engine = engine
        self._server: grpc.aio.Server | None = None
        self._identity = new_identity()
        self.secret = Secret(new_token(), self._identity.certificate)

    async def __aenter__(self) -> FakeWorker:
        callers = Callers()
        callers.admit(self.secret.token, "trainer")
        door = Door(callers, self._identity)
        self._server, self.address = listen("127.0.0.1", 0, door, "port")
        rpc.add_RolloutServicer_to_server(self, self._server)
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    async def Generate(
        self,
        request_iterator: AsyncIterator[pb.GenerateRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.Reply]:
        """One reply per finished request."""
        side = self._engine.capabilities.side
        asked = await read_requests(request_iterator, **_LIMITS)
        requests = [request_from_proto(first, side, rest) for first, *rest in asked]
        self.keys += [one.key for one in requests]
        replies: asyncio.Queue[pb.Reply | None] = asyncio.Queue()

        def on_reply(key: Key, samples: Sequence[Sampled]) -> None:
            for message in reply_messages(key, samples):
                replies.put_nowait(message)

        generating = asyncio.ensure_future(self._engine.generate(requests, on_reply))
        generating.add_done_callback(lambda task: replies.put_nowait(None))
        try:
            while (reply := await replies.get()) is not None:
                yield reply
            await generating
        except WorkerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            generating.cancel()

    async def Health(
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthReply:
        """The engine's own figures."""
        return pb.HealthReply(version=self._engine.version, figures=self._engine.health())
