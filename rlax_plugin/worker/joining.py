"""How a worker becomes a member of a run: config, an engine that is ready, registration."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc

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

_ENVELOPE_BYTES = 1024  # that protobuf adds


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
    try:
        return await fleet.Register(request, timeout=deadlines.startup_s, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        raise _unreached(error, deadlines.startup_s) from error


async def fetch_config(controller: str, startup_s: float) -> ResolvedConfig:
    """The config of the run that a controller belongs to.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: what it answered is no config.
    """
    # Nothing else is asked on this channel, so that no larger message is read.
    room = ("grpc.max_receive_message_length", MAX_BYTES + _ENVELOPE_BYTES)
    options = [option for option in CHANNEL_OPTIONS if option[0] != room[0]]
    async with grpc.aio.insecure_channel(controller, options=[*options, room]) as channel:
        ask = rpc.FleetStub(channel).Config
        try:
            reply = await ask(pb.ConfigRequest(), timeout=startup_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise ConfigError(FROM_RUN, None, f"takes more than {MAX_BYTES:,} bytes") from None
            raise _unreached(error, startup_s) from error
    return of_bytes(reply.config)


def _unreached(error: grpc.aio.AioRpcError, startup_s: float) -> DeadlineError:
    what = f"reaching the controller ({describe(error)})"
    return DeadlineError(what, startup_s, "rlax.deadlines.startup_s")
