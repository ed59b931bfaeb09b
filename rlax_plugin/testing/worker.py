"""A worker without a process: the Rollout service of ``rlax.proto`` over an engine, in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from rlax_plugin.errors import WorkerError
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.channels import SERVER_OPTIONS
from rlax_plugin.rpc.wire import reply_to_proto, request_from_proto
from rlax_plugin.types import Rollout


class FakeWorker(rpc.RolloutServicer):
    """Serves on a free loopback port inside ``async with``; what the engine rejects, it rejects.

    Attributes:
      address: host:port.
      group_ids: of all groups asked for, in order.

    Args:
      engine: such as a ``FakeEngine``, which checks requests.
    """

    def __init__(self, engine: RolloutEngine):
        self.address = ""
        self.group_ids: list[int] = []
        self._engine = engine
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> FakeWorker:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        rpc.add_RolloutServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GroupReply]:
        """One reply per finished group."""
        requests = [request_from_proto(spec) for spec in request.groups]
        self.group_ids += [one.group_id for one in requests]
        replies: asyncio.Queue[pb.GroupReply | None] = asyncio.Queue()

        def on_group(group_id: int, rollouts: list[Rollout]) -> None:
            replies.put_nowait(reply_to_proto(group_id, rollouts))

        generating = asyncio.ensure_future(self._engine.generate(requests, on_group))
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
