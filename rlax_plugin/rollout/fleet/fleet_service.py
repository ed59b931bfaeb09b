"""The fleet as a gRPC service, in which a process can only speak for itself.

The run's worker token lets a process register. Afterwards it presents the token of its
registration, which it generated itself and which the controller presents in turn when it calls the
worker. Only these two know it, so no worker can impersonate another or have it generate.
"""

from __future__ import annotations

from typing import Any

import grpc

from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.identities import Identity
from rlax_plugin.rollout.fleet.package_versions import PackageVersions
from rlax_plugin.rollout.fleet.progress import moves_of, unfinished_of
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import Callers, current_caller
from rlax_plugin.rpc.security.secret import Secret

_MOST_FORGOTTEN = 100  # processes of which the fleet knows nothing more, before their tokens go


class FleetService(rpc.FleetServicer):
    """Authenticates the caller, and passes the call on to the fleet.

    Args:
      callers: of the server; registered processes are added to it.
      versions: rejects workers with other packages; None: all packages are accepted.
    """

    def __init__(self, fleet: Fleet, callers: Callers, versions: PackageVersions | None = None):
        self._fleet, self._callers, self._versions = fleet, callers, versions
        self._tokens: dict[Identity, str] = {}

    async def Config(self, request: pb.ConfigRequest, context: Any) -> pb.ConfigReply:
        self._fleet.starting.note(request.worker, request.doing)
        reply = await self._fleet.Config(request, context)
        if self._versions is not None:
            reply.versions.update(self._versions.run)
        return reply

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        if (why := Secret(request.token, request.certificate).problem) is not None:
            return self._rejected(request, f"its registration is no secret: {why}")
        process = request.worker, request.process
        before = self._tokens.get(process, "")
        if request.token in self._callers and request.token != before:
            # Such as the run's worker token, which it knows: it would go when this process goes.
            return self._rejected(request, "its token is in use already")
        if self._versions and (why := self._versions.rejection(request.worker, request.versions)):
            self._fleet.starting.note(request.worker, "rejected")  # it has said why
            return pb.RegisterReply(accepted=False, reason=why, other_versions=True)
        reply = await self._fleet.Register(request, context)
        if reply.accepted:
            self._callers.dismiss(before)
            self._callers.admit(request.token, "worker", process=process)
            self._tokens[process] = request.token
            self._forget()
        return reply

    def _rejected(self, request: pb.RegisterRequest, reason: str) -> pb.RegisterReply:
        self._fleet.rejected(request.worker, reason)
        return pb.RegisterReply(accepted=False, reason=reason)

    def _forget(self) -> None:
        """Drops the tokens of processes that the fleet has forgotten."""
        known = self._fleet.identities
        if len(self._tokens) > len(known) + _MOST_FORGOTTEN:
            for process in [one for one in self._tokens if one not in known]:
                self._callers.dismiss(self._tokens.pop(process))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:
        await self._of_itself(request, context)
        try:
            moves_of(request.progress)
            unfinished_of(request.progress)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._fleet.Heartbeat(request, context)

    async def Deregister(self, request: pb.DeregisterRequest, context: Any) -> pb.DeregisterReply:
        await self._of_itself(request, context)
        return await self._fleet.Deregister(request, context)

    @staticmethod
    async def _of_itself(request: pb.HeartbeatRequest | pb.DeregisterRequest, context: Any) -> None:
        caller = current_caller()
        if caller is None or caller.process != (request.worker, request.process):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "only the process that has registered may call this, with its registration's token",
            )
