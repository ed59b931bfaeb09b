"""The RL service of a worker: groups in, a stream of finished groups out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from rlax_plugin.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.types import Rollout
from rlax_plugin.wire import reply_to_proto, request_from_proto


class RolloutService(rpc.RolloutServicer):
    """Adapts a ``RolloutEngine`` to the wire. ``draining`` refuses new calls."""

    def __init__(self, engine: RolloutEngine):
        self._engine = engine
        self.draining = False
        self.calls = 0

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GroupReply]:
        if self.draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is draining")
        requests = [request_from_proto(spec) for spec in request.groups]
        finished: asyncio.Queue[tuple[int, list[Rollout]] | None] = asyncio.Queue()
        self.calls += 1
        # When the caller's deadline ends, gRPC cancels this coroutine, and with it the generation.
        generation = asyncio.ensure_future(
            self._engine.generate(requests, lambda *group: finished.put_nowait(group))
        )
        generation.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (group := await finished.get()) is not None:
                yield reply_to_proto(*group)
            generation.result()  # raises what ended it early
        finally:
            generation.cancel()
            self.calls -= 1

    async def Health(
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthReply:
        return pb.HealthReply(
            version=self._engine.version, figures=self._engine.health(), draining=self.draining
        )
