"""Joining and leaving a run, from the worker's side."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import ConfigError, DeadlineError, WorkerError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.config.handing import FROM_RUN, MAX_BYTES, of_bytes
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.key_ring import token_path
from rlax_plugin.rpc.security.secret import Access, FollowedSecret, MissingSecretError
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.rpc.transport.doors import connect

log = logging.getLogger("rlax.worker")

_LEAVE_PAUSE_S = 0.2  # before a controller that did not hear of a quarantine is told again
_LONGEST_REASON = 4000  # characters: several packages and a command
_LONGEST_PAUSE_S = 2.0  # before a controller that does not answer is asked again


@dataclass(frozen=True, slots=True)
class RunToJoin:
    """A run, as its workers know it.

    Attributes:
      controller: host:port.
      secret: the access of the run's workers to the controller and the parameter server.
    """

    controller: str
    section: RlaxSection
    config_hash: str
    secret: Access


async def prepare(
    engine: RolloutEngine,
    deadlines: Deadlines,
    tell: Callable[[str], Awaitable[object]],
    paused_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Returns once an engine is ready to be registered.

    Args:
      tell: called with the activity of the engine whenever it is another one.
      paused_s: see ``load_within``.

    Raises:
      DeadlineError: it was not built and compiled in time.
    """
    deadline_s, began_s = deadlines.startup_s, time.monotonic() - paused_s()
    preparing = asyncio.ensure_future(engine.prepare())
    told = ""
    try:
        while not preparing.done():
            left_s = began_s + deadline_s + paused_s() - time.monotonic()
            if left_s <= 0:
                what = "building the rollout engine and compiling its programs"
                raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s")
            if (doing := engine.preparing()) != told:
                told = doing
                await tell(doing)
            await asyncio.wait({preparing}, timeout=min(left_s, deadlines.heartbeat_s))
    finally:
        preparing.cancel()
    await preparing  # raises its error


async def join(
    fleet: rpc.FleetStub,
    request: pb.RegisterRequest,
    deadlines: Deadlines,
    engine: str,
    diagnose: Callable[[grpc.aio.AioRpcError], Awaitable[None]] | None = None,
) -> pb.RegisterReply:
    """Registers a worker, and waits for its name to be free if another process has it.

    The process that had the name before counts as alive for a while after it was killed.

    Args:
      engine: its name, for messages.
      diagnose: see ``Connection.diagnose``.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: another live process has this one's name, or the engine lacks an ability that
        the run needs, or other packages are installed than the run has.
      WorkerError: the controller rejected this worker.
    """
    left_s = 2 * (deadlines.lost_s + deadlines.heartbeat_s)
    while (reply := await _asked(fleet, request, deadlines, diagnose)).name_taken:
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
    if reply.other_versions:
        raise _other_packages(reply.reason)
    if not reply.accepted:
        raise WorkerError(reply.reason)
    return reply


async def _asked(
    fleet: rpc.FleetStub,
    request: pb.RegisterRequest,
    deadlines: Deadlines,
    diagnose: Callable[[grpc.aio.AioRpcError], Awaitable[None]] | None,
) -> pb.RegisterReply:
    async def ask(within_s: float) -> pb.RegisterReply:
        try:
            return await fleet.Register(request, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            if diagnose is not None:
                await diagnose(error)
            raise

    return await _answered(ask, deadlines.startup_s)


async def fetch_config(
    controller: str,
    token_file: str | None,
    startup_s: float,
    name: str = "",
    *,
    authority: str = "",
) -> tuple[ResolvedConfig, FollowedSecret]:
    """The config of the run that a controller belongs to, and the secret of the run's workers.

    Args:
      name: name of the worker that is starting, for the display.
      token_file: awaited like the controller, which writes it; None: the file of a controller of
        this user on this machine.
      authority: PEM, with which the controller is verified; "": as the token file says.

    Raises:
      DeadlineError: no controller answered within ``startup_s``.
      ConfigError: its answer is not a config, or the run has other packages than this process.
    """
    path = token_path(controller) if token_file is None else Path(token_file)

    async def ask(within_s: float) -> tuple[pb.ConfigReply, FollowedSecret]:
        # Anew each time: until it answers, the file may be that of an earlier run.
        secret = FollowedSecret(path, "--token-file", authority)
        connection = connect(controller, secret)
        try:
            async with connection:
                request = pb.ConfigRequest(worker=name)
                return await rpc.FleetStub(connection).Config(request, timeout=within_s), secret
        except grpc.aio.AioRpcError as error:
            await connection.diagnose(error)
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            raise ConfigError(FROM_RUN, None, f"takes more than {MAX_BYTES:,} bytes") from None

    reply, secret = await _answered(ask, startup_s)
    config = of_bytes(reply.config)
    if reply.versions and not config.section.network.allow_other_versions:
        # The controller would say the same, after the engine has been built.
        own = own_versions(config.section.plugins)
        why = PackageVersions(reply.versions).rejection(name or "of this process", own)
        if why is not None:
            raise _other_packages(why)
    return config, secret


def _other_packages(reason: str) -> ConfigError:
    return ConfigError("installed packages", None, one_line(reason, _LONGEST_REASON))


async def leave(fleet: rpc.FleetStub, request: pb.DeregisterRequest, rpc_s: float) -> None:
    """Reports to the controller that a worker leaves; repeats a quarantine until it is received.

    Args:
      fleet: shows the token of the worker's registration.
      rpc_s: time limit for all tries.
    """
    end_s = time.monotonic() + rpc_s
    while True:
        left_s = max(_LEAVE_PAUSE_S, end_s - time.monotonic())
        try:
            await fleet.Deregister(request, timeout=left_s)
            return
        except grpc.aio.AioRpcError as error:
            why = describe(error, (left_s, "rlax.deadlines.rpc_s"))
            log.info("the controller could not be informed: %s", why)
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return  # it is another process, which has nothing of this worker
        if not request.quarantine or time.monotonic() + _LEAVE_PAUSE_S > end_s:
            return
        await asyncio.sleep(_LEAVE_PAUSE_S)


async def _answered[T](ask: Callable[[float], Awaitable[T]], startup_s: float) -> T:
    """Calls a controller, and calls again if it ends before it has answered and may be replaced.

    Args:
      ask: makes the call once, given the remaining seconds.
    """
    pauses, end_s = Pauses(startup_s, _LONGEST_PAUSE_S), time.monotonic() + startup_s
    while True:
        try:
            return await ask(max(0.0, end_s - time.monotonic()))
        except MissingSecretError as error:
            if pauses.over:
                what = f"reaching the controller ({error})"
                raise DeadlineError(what, startup_s, "rlax.deadlines.startup_s") from error
            why = f"no token of the run yet: {error}"
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                reason = (
                    "this run takes no such token: copy the run's worker-token.json again, which "
                    "may have been rotated, and name that file"
                )
                raise ConfigError("--token-file", None, reason) from None
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                reason = f"{describe(error)}. Name the run's worker-token.json"
                raise ConfigError("--token-file", None, reason) from None
            if error.code() is not grpc.StatusCode.UNAVAILABLE or pauses.over:
                what = f"reaching the controller ({describe(error)})"
                raise DeadlineError(what, startup_s, "rlax.deadlines.startup_s") from error
            why = f"no answer from the controller: {describe(error)}"
        pause_s = pauses.next_s()
        log.warning("%s; trying again in %g s", why, pause_s)
        await asyncio.sleep(pause_s)
