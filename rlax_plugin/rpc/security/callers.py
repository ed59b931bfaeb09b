"""Access control of calls: roles, the one table of methods, and the check before every method.

Every caller shows a token. The server knows the token's role, and the role decides which methods it
may call; a method that is missing from the table is rejected for every role.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import grpc
from google.protobuf.message import DecodeError

from rlax_plugin.base.text.harmless import one_line

log = logging.getLogger("rlax.rpc")

Role = Literal["trainer", "host", "worker", "client"]

_TRAINER: frozenset[Role] = frozenset({"trainer"})
_HOST: frozenset[Role] = frozenset({"host"})
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
    "/rlax.v1.Hosts/Join": _HOST,
    "/rlax.v1.Hosts/Batch": _HOST,
    "/rlax.v1.Hosts/Decision": _HOST,
    "/rlax.v1.Hosts/Stop": _HOST,
    "/rlax.v1.Hosts/Chunks": _HOST,
    "/rlax.v1.Run/Status": _TRAINER | _CLIENT,
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
_AGAIN_S = 60.0  # between two lines of one caller and reason
_MOST_NOTED = 256  # callers and reasons
_LONGEST_METHOD = 128  # characters; what callers send may be anything


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

    A method sees only messages of its own type; other bytes get one clear status.

    Args:
      callers: the accepted tokens; more may be admitted while the server runs.
      front_ends: names of services besides those of ``METHODS``, whose methods clients may call.
    """

    def __init__(self, callers: Callers, front_ends: Iterable[str] = ()):
        self._callers, self._front_ends = callers, frozenset(front_ends)
        self._refusals = Refusals()

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
        method = details.method
        if caller is None:
            shown = any(key == "authorization" for key, _ in details.invocation_metadata or ())
            why = _WRONG_TOKEN if shown else _NO_TOKEN
            return self._refusing(grpc.StatusCode.UNAUTHENTICATED, why, method)
        if caller.roles.isdisjoint(allowed := self._roles(method)):
            roles = " or ".join(sorted(caller.roles))
            needed = " or ".join(sorted(allowed)) or "none"
            why = f"the role {roles} of this token does not allow this method (allowed: {needed})"
            return self._refusing(grpc.StatusCode.PERMISSION_DENIED, why, method)
        _CALLER.set(caller)  # in the call's own task, which goes on with the method
        return refusing_garbled(await continuation(handler_call_details))

    def _refusing(self, code: grpc.StatusCode, why: str, method: str) -> Any:
        async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> None:
            self._refusals.note(why, method, context.peer())
            await context.abort(code, why)

        # Of a stream, so that no message is waited for.
        return grpc.stream_stream_rpc_method_handler(refuse)


_NO_TOKEN = "the call shows no token: clients take it from the token file of this server"
_WRONG_TOKEN = (
    "the call shows a token that is not taken here: it is another run's or another server's, or it "
    "was rotated; take the newest token file of this server"
)


class Refusals:
    """Logs rejected calls: for each reason and host one line, and further ones once a minute.

    Args:
      clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._noted: dict[tuple[str, str], tuple[float, int]] = {}  # when, and how many since

    def note(self, why: str, method: str, peer: str) -> None:
        """Notes a rejected call.

        Args:
          peer: address of the caller, as gRPC names it.
        """
        key, now_s = (why, peer.rpartition(":")[0]), self._clock()
        noted_s, since = self._noted.pop(key, (now_s - _AGAIN_S, 0))
        if now_s - noted_s < _AGAIN_S:
            self._noted[key] = noted_s, since + 1
            return
        self._noted[key] = now_s, 0
        if len(self._noted) > _MOST_NOTED:
            del self._noted[next(iter(self._noted))]
        more = f" ({since} more like it since the last such line)" if since else ""
        called, caller = one_line(method, _LONGEST_METHOD), one_line(peer, _LONGEST_METHOD)
        log.warning("rejected a call of %s from %s: %s%s", called, caller, why, more)


# gRPC itself would log a traceback for bytes that are no message of the called method, and answer
# UNKNOWN, as if the method had failed.
_GARBLED: Any = object()  # stands for such a message


def refusing_garbled(handler: Any) -> Any:
    """A method's handler that only receives messages of its type; None for None."""
    if handler is None or handler.request_deserializer is None:
        return handler
    kinds = "stream" if handler.request_streaming else "unary"
    kinds += "_stream" if handler.response_streaming else "_unary"
    taken = _of_one if not handler.request_streaming else _of_many
    method = taken(getattr(handler, kinds), handler.response_streaming)
    made = getattr(grpc, f"{kinds}_rpc_method_handler")
    return made(method, _tried(handler.request_deserializer), handler.response_serializer)


def _tried(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def message(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _GARBLED

    return message


async def _refuse(context: grpc.aio.ServicerContext) -> None:
    reason = "the bytes that were sent are no message of this method"
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)


def _of_one(method: Callable[..., Any], streams: bool) -> Callable[..., Any]:
    async def replies(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        if request is _GARBLED:
            await _refuse(context)
        async with aclosing(method(request, context)) as found:
            async for reply in found:
                yield reply

    async def reply(request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request is _GARBLED:
            await _refuse(context)
        return await method(request, context)

    return replies if streams else reply


def _of_many(method: Callable[..., Any], streams: bool) -> Callable[..., Any]:
    async def checked(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async for request in requests:
            if request is _GARBLED:
                await _refuse(context)
            yield request

    async def replies(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with aclosing(method(checked(requests, context), context)) as found:
            async for reply in found:
                yield reply

    async def reply(requests: Any, context: grpc.aio.ServicerContext) -> Any:
        return await method(checked(requests, context), context)

    return replies if streams else reply
