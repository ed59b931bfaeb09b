"""Access control of calls: roles, the one table of methods, and the check before every method.

Every caller shows a token. The server knows the token's role, and the role decides which methods it
may call; a method that is missing from the table is rejected for every role.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import grpc

from rlax_plugin.rpc.garbled import refusing_garbled

Role = Literal["trainer", "worker", "client"]

_TRAINER: frozenset[Role] = frozenset({"trainer"})
_WORKER: frozenset[Role] = frozenset({"worker"})
_CLIENT: frozenset[Role] = frozenset({"client"})

METHODS: Mapping[str, frozenset[Role]] = {
    "/rlax.v1.Rollout/Generate": _TRAINER,
    "/rlax.v1.Rollout/GiveUp": _TRAINER,
    "/rlax.v1.Rollout/Health": _TRAINER | _CLIENT,
    "/rlax.v1.Fleet/Config": _WORKER,
    "/rlax.v1.Fleet/Register": _WORKER,
    "/rlax.v1.Fleet/Heartbeat": _WORKER,
    "/rlax.v1.Fleet/Deregister": _WORKER,
    "/rlax.v1.ParameterServer/Publish": _TRAINER,
    "/rlax.v1.ParameterServer/Latest": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Acquire": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Renew": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Release": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Watch": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Files": _TRAINER | _WORKER,
    "/rlax.v1.ParameterServer/Fetch": _TRAINER | _WORKER,
}
"""Method -> the roles that may call it. Services that an engine adds are for clients."""

_SCHEME = "Bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity behind a token.

    Attributes:
      roles: decide which methods it may call.
      process: name and process id of the worker that registered with this token; ("", ""): the
        token belongs to no registration.
    """

    roles: frozenset[Role]
    process: tuple[str, str] = ("", "")


_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the call that is being answered; None outside of a call."""
    return _CALLER.get()


class Callers:
    """The tokens that a server accepts, each with its caller.

    Only digests are stored and looked up, so the time of a look-up reveals nothing about a token.

    Args:
      anyone: caller that represents calls without a token; None: such calls are rejected.
    """

    def __init__(self, anyone: Caller | None = None):
        self._anyone = anyone
        self._known: dict[bytes, Caller] = {}

    def __contains__(self, token: str) -> bool:
        return _digest(token) in self._known

    def admit(self, token: str, *roles: Role, process: tuple[str, str] = ("", "")) -> None:
        """Accepts this token from now on, for the methods that the roles allow."""
        self._known[_digest(token)] = Caller(frozenset(roles), process)

    def dismiss(self, token: str) -> None:
        """Stops accepting this token; does nothing for an unknown one."""
        self._known.pop(_digest(token), None)

    def of(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller with this metadata; None if its token is missing or unknown."""
        for key, value in metadata:
            if key == "authorization":
                if isinstance(value, str) and value.startswith(_SCHEME):
                    return self._known.get(_digest(value.removeprefix(_SCHEME)))
                return None
        return self._anyone


def with_token(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that shows a token."""
    return (("authorization", _SCHEME + token),)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


class Guard(grpc.aio.ServerInterceptor):
    """Lets a call pass if its caller has permission, before any of its messages is read.

    A method sees only messages of its own type, see ``garbled.py``.

    Args:
      callers: the accepted tokens; more may be admitted while the server runs.
      front_ends: names of services besides those of ``METHODS``, whose methods clients may call.
    """

    def __init__(self, callers: Callers, front_ends: Iterable[str] = ()):
        self._callers, self._front_ends = callers, frozenset(front_ends)

    def _roles(self, method: str) -> frozenset[Role]:
        service = method.removeprefix("/").rpartition("/")[0]
        return _CLIENT if service in self._front_ends else METHODS.get(method, frozenset())

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        details: Any = handler_call_details
        caller = self._callers.of(details.invocation_metadata or ())
        if caller is None:
            return _NO_TOKEN
        if caller.roles.isdisjoint(self._roles(details.method)):
            return _NOT_ALLOWED
        _CALLER.set(caller)  # in the call's own task, which goes on with the method
        return refusing_garbled(await continuation(handler_call_details))


def _refusing(code: grpc.StatusCode, why: str) -> Any:
    async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> None:
        await context.abort(code, why)

    # Of a stream, so that no message is waited for.
    return grpc.stream_stream_rpc_method_handler(refuse)


_NO_TOKEN = _refusing(
    grpc.StatusCode.UNAUTHENTICATED, "the call shows no token, or one that is not taken here"
)
_NOT_ALLOWED = _refusing(
    grpc.StatusCode.PERMISSION_DENIED, "the role of this token does not allow this method"
)
