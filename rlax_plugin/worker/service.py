"""The RL service of a worker: groups in, a stream of finished groups out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import grpc

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import WorkerError
from rlax_plugin.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.types import Rollout
from rlax_plugin.wire import reply_to_proto, request_from_proto

_TOKEN_BYTES = 4


def refusal(spec: pb.GroupSpec, section: RlaxSection) -> str | None:
    """Why a group must not reach the engine; None if it may."""
    limits, sampling = section.rollouts, spec.sampling
    length, rest = divmod(len(spec.prompt_tokens), _TOKEN_BYTES)
    most = max(limits.slots, limits.group_size, section.evaluation.samples)
    found = {
        "prompt_tokens are not int32": rest != 0,
        f"{length} prompt tokens, rlax.rollouts.max_prompt_tokens is "
        f"{limits.max_prompt_tokens}": not 1 <= length <= limits.max_prompt_tokens,
        f"max_new_tokens {sampling.max_new_tokens}, rlax.rollouts.max_new_tokens is "
        f"{limits.max_new_tokens}": not 1 <= sampling.max_new_tokens <= limits.max_new_tokens,
        f"{len(spec.seeds)} samples, must be 1 to {most}": not 1 <= len(spec.seeds) <= most,
        f"temperature {sampling.temperature}": not 0 <= sampling.temperature < math.inf,
        f"top_k {sampling.top_k}": sampling.top_k < 0,
        f"top_p {sampling.top_p}": not 0 < sampling.top_p <= 1,
    }
    problems = [problem for problem, is_so in found.items() if is_so]
    return f"group {spec.group_id}: {'; '.join(problems)}" if problems else None


class RolloutService(rpc.RolloutServicer):
    """Adapts a ``RolloutEngine`` to the wire. ``draining`` refuses new calls.

    Status codes tell the caller what to do: INVALID_ARGUMENT, the request is wrong everywhere;
    INTERNAL, this engine failed; UNAVAILABLE, ask another worker.

    Args:
      section: its limits are held here, so that no request can harm the engine.
      on_wanted: called with the newest ``min_version`` of each call.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        section: RlaxSection,
        on_wanted: Callable[[int], None] = lambda version: None,
    ):
        self._engine, self._section, self._on_wanted = engine, section, on_wanted
        self.draining = False

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GroupReply]:
        if self.draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is draining")
        for spec in request.groups:
            if why := refusal(spec, self._section):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        requests = [request_from_proto(spec) for spec in request.groups]
        self._on_wanted(max((r.min_version for r in requests), default=0))
        finished: asyncio.Queue[tuple[int, list[Rollout]] | None] = asyncio.Queue()
        # When the caller's deadline ends, gRPC cancels this coroutine, and with it the generation.
        generation = asyncio.ensure_future(
            self._engine.generate(requests, lambda *group: finished.put_nowait(group))
        )
        generation.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (group := await finished.get()) is not None:
                yield reply_to_proto(*group)
            generation.result()  # raises what ended it early
        except WorkerError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            generation.cancel()

    async def Health(
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthReply:
        return pb.HealthReply(
            version=self._engine.version, figures=self._engine.health(), draining=self.draining
        )
