"""How a worker becomes a member of a run: config, an engine that is ready, registration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import grpc

from rlax_plugin.concurrency.retrying import Pauses
from rlax_plugin.config import Deadlines
from rlax_plugin.config.handing import FROM_RUN, MAX_BYTES, of_bytes
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError, DeadlineError, WorkerError
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.channels import CHANNEL_OPTIONS, describe
from rlax_plugin.text.harmless import one_line

log = logging.getLogger("rlax.worker")


async def prepare(engine: RolloutEngine, deadline_s: float) -> None:
    """Returns once an engine is ready to be registered.

    Raises:
      DeadlineError: it was not built and compiled in time.
    """
    if (build := getattr(engine, "prepare", None)) is None:
        return
    try:
        await asyncio.wait_for(build(), deadline_s)
    except TimeoutError:
        what = "building the rollout engine and compiling its programs"
        raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s") from None


async def join(
    fleet: rpc.FleetStub, request: pb.RegisterRequest, deadlines: Deadlines, engine: str
) -> pb.RegisterReply:
    """Registers a worker, and waits for its name to be free if another process has it.

    The process that had the name before counts as alive for a while after it was killed.

    Args:
      engine: its name, for messages.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: another process that is alive has this one's name, or the run needs what the
        engine lacks.
      WorkerError: the controller rejected this worker.
    """
    left_s = 2 * (deadlines.lost_s + deadlines.heartbeat_s)
    while (reply := await _asked(fleet, request, deadlines)).name_taken:
        if left_s <= 0:
            raise ConfigError("--name", request.worker, reply.reason)
        log.warning("%s %s", request.worker, reply.reason)
        began_s = time.monotonic()
        await asyncio.sleep(deadlines.heartbeat_s)
        # A pause of the whole machine counts for little: the controller, too, allows for its own.
        left_s -= min(time.monotonic() - began_s, 2 * deadlines.heartbeat_s)
    if reply.unfit:
        what = f"cannot generate for this run: {one_line(reply.reason)}"
        raise ConfigError("rlax.rollouts.engine", engine, what)
    if not reply.accepted:
        raise WorkerError(reply.reason)
    return reply


async def _asked(
    fleet: rpc.FleetStub, request: pb.RegisterRequest, deadlines: Deadlines
) -> pb.RegisterReply:
    async def ask(within_s: float) -> pb.RegisterReply:
        return await fleet.Register(request, timeout=within_s, wait_for_ready=True)

    return await _answered(ask, deadlines.startup_s)


async def fetch_config(controller: str, startup_s: float) -> ResolvedConfig:
    """The config of the run that a controller belongs to.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: what it answered is no config.
    """
    async with grpc.aio.insecure_channel(controller, options=CHANNEL_OPTIONS) as channel:
        fleet = rpc.FleetStub(channel)

        async def ask(within_s: float) -> pb.ConfigReply:
            try:
                return await fleet.Config(pb.ConfigRequest(), timeout=within_s, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                raise ConfigError(FROM_RUN, None, f"takes more than {MAX_BYTES:,} bytes") from None

        reply = await _answered(ask, startup_s)
    return of_bytes(reply.config)


async def _answered[T](ask: Callable[[float], Awaitable[T]], startup_s: float) -> T:
    """Asks a controller, and again if it ends before it has answered: another may take its place.

    Args:
      ask: makes the call once, given the seconds that are left for it.
    """
    pauses, end_s = Pauses(startup_s), time.monotonic() + startup_s
    while True:
        try:
            return await ask(max(0.0, end_s - time.monotonic()))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or pauses.over:
                what = f"reaching the controller ({describe(error)})"
                raise DeadlineError(what, startup_s, "rlax.deadlines.startup_s") from error
            pause_s = pauses.next_s()
            log.warning(
                "no answer from the controller, trying again in %g s: %s", pause_s, describe(error)
            )
        await asyncio.sleep(pause_s)
