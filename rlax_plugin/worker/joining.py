"""How a worker becomes a member of a run."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc

from rlax_plugin.config import Deadlines
from rlax_plugin.errors import ConfigError, DeadlineError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.channels import describe

log = logging.getLogger("rlax.worker")


async def join(
    fleet: rpc.FleetStub, request: pb.RegisterRequest, deadlines: Deadlines
) -> pb.RegisterReply:
    """Registers a worker, and waits for its name to be free if another process has it.

    The process that had the name before counts as alive for a while after it was killed.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: another process that is alive has this one's name.
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
    if not reply.accepted:
        raise WorkerError(reply.reason)
    return reply


async def _asked(
    fleet: rpc.FleetStub, request: pb.RegisterRequest, deadlines: Deadlines
) -> pb.RegisterReply:
    try:
        return await fleet.Register(request, timeout=deadlines.startup_s, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        raise DeadlineError(
            f"reaching the controller ({describe(error)})",
            deadlines.startup_s,
            "rlax.deadlines.startup_s",
        ) from error
