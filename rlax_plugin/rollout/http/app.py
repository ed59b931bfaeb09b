"""The HTTP door: routes, keys, limits and deadlines in front of a policy.

A request is refused before its body is read if its key is wrong, and before anything is sampled if
a field cannot be honoured. When its client goes, or its time is over, its samples end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.config.addresses import is_loopback
from rlax_plugin.rollout.http import wire
from rlax_plugin.rollout.http.policy import Answered, Asked, Policy, Refused, Told
from rlax_plugin.rollout.http.sessions import EDGE_SOURCE, EDGE_TYPE, REQUEST_ID, declared
from rlax_plugin.rpc.transport.http import Limits

log = logging.getLogger("rlax.http")

LIMITS = Limits(connections=1024, connection_s=30.0, answer_s=3600.0)
"""Of a server in front of this application; an answer may wait in a queue for a long time."""

MOST_BYTES = 16 << 20
"""Of a body, as of a message over gRPC."""

MOST_HELD_BYTES = 16 * MOST_BYTES
"""Of all large bodies together that are being received or read."""

_LARGE_BYTES = 64 << 10  # as many may wait for each connection anyway

_KINDS: Mapping[str, wire.Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/inference/v1/generate": "tokens",
}
_METHODS = {"/v1/models": "GET", "/tokenize": "POST"} | dict.fromkeys(_KINDS, "POST")

PolicyOf = Callable[[str | None], Policy | None]
"""Returns the policy that a key opens, or None; the key is None if there is no header.

A look-up by a digest of the key takes no time that tells anything about others.
"""

Failed = Callable[[Policy], None]
"""Called with the policy of a request that failed, for which its client is not to blame."""

Count = Callable[[str, str, float], None]
"""Called at the end of each request with its path, its HTTP status or CANCELLED, and seconds."""


def _uncounted(path: str, code: str, took_s: float) -> None:
    pass


def _untold(policy: Policy) -> None:
    pass


@dataclass(eq=False, slots=True)
class HttpDoor:
    """An ASGI application; serve it by ``HttpServer`` with ``LIMITS``.

    Attributes:
      policy_of: see ``PolicyOf``.
      count: see ``Count``; called on the server's thread.
      needs_key: False if everybody who can connect may ask. A browser then may not, because any
        page that it shows could make it ask.
      failed: see ``Failed``; called on the server's thread.
      most_of_one: bytes of large bodies that may be held for one policy.
      answering: number of requests that are being answered.
      held: bytes of large bodies, by policy; see ``MOST_HELD_BYTES``.
      reading: held while a large body is parsed.
    """

    policy_of: PolicyOf
    count: Count = _uncounted
    needs_key: bool = True
    failed: Failed = _untold
    most_of_one: int = MOST_HELD_BYTES
    answering: int = 0
    held: Counter[Policy] = field(default_factory=Counter)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, began_s, code = scope["path"], time.perf_counter(), "500"
        self.answering += 1
        try:
            code = str(await self._respond(Request(scope, receive), send))
        except ClientDisconnect:
            code = "CANCELLED"
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        finally:
            self.answering -= 1
            known = path if path in _METHODS else "other"
            self.count(known, code, time.perf_counter() - began_s)

    async def _respond(self, request: Request, send: Send) -> int:
        """Answers a request; returns the status."""
        more: Mapping[str, str] = {"connection": "close"}  # the body is perhaps not read
        policy: Policy | None = None
        try:
            policy = self._admitted(request)
            if request.scope["path"] == "/v1/models":
                return await _send(send, 200, wire.models(policy))
            asked = await self._asked(request, policy)
            more = {}
            return await _while_connected(request, _reply(policy, asked, send))
        except ClientDisconnect:
            raise
        except Exception as raised:  # noqa: BLE001 -- logged, and told to the client
            error = _refusal(raised)
            if policy is not None and error.status >= 500:
                self.failed(policy)
            if error.status == 401:
                more = {**more, "www-authenticate": "Bearer"}
            if error.status in (429, 503):
                more = {**more, "retry-after": "1"}
            return await _send(send, error.status, wire.error_body(error), more)

    def _admitted(self, request: Request) -> Policy:
        headers, path = request.headers, request.scope["path"]
        policy = self.policy_of(_key(headers) if self.needs_key else None)
        if policy is None:
            raise Refused(
                "a key that is accepted here is required: Authorization: Bearer KEY",
                status=401,
                kind="authentication_error",
            )
        # A page whose name was made to resolve to this machine (DNS rebinding) sends no Origin.
        local = is_loopback(request.url.hostname or "")
        if not self.needs_key and ("origin" in headers or not local):
            reason = "pages in a browser may not ask a server that needs no key: a request must "
            reason += "have no Origin, and localhost or a loopback address as Host"
            raise Refused(reason, status=403, kind="permission_error")
        old = request.scope["http_version"] == "1.0"
        if "transfer-encoding" in headers and (old or "content-length" in headers):
            # A proxy may have read another length (RFC 9112, section 6.1).
            raise Refused(
                "a request is chunked or has a length, and not both; that of HTTP 1.0 has one"
            )
        if path not in _METHODS:
            paths = ", ".join(sorted(_METHODS))
            raise Refused(f"no such path; there are {paths}", status=404, kind="not_found_error")
        if request.method != _METHODS[path]:
            raise Refused(f"{path} takes {_METHODS[path]} only", status=405)
        return policy

    async def _asked(self, request: Request, policy: Policy) -> wire.Wanted | wire.ToTokenize:
        """Reads a request; large ones one after the other, beside the event loop.

        So many seconds of parsing delay no other client, and memory has a limit.
        """
        body, path, sent = bytearray(), request.scope["path"], _sent(request.headers)
        counted = 0
        try:
            async for piece in _pieces(request):
                body += piece
                if len(body) > _LARGE_BYTES:
                    self.held[policy] += len(body) - counted
                    counted = len(body)
                    own = self.held[policy] > self.most_of_one
                    if own or self.held.total() > MOST_HELD_BYTES:
                        if not own:
                            self.failed(policy)
                        reason = "too many large requests come at the same time: try again later"
                        raise Refused(reason, status=429, kind="rate_limit_error")

            def read() -> wire.Wanted | wire.ToTokenize:
                if path == "/tokenize":
                    return wire.to_tokenize(bytes(body), policy.name)
                return wire.wanted(_KINDS[path], bytes(body), policy.name, sent)

            if not counted:
                return read()
            async with self.reading:
                return await asyncio.wrap_future(on_daemon(read, "rlax-http-body"))
        finally:
            self.held[policy] -= counted
            self.held += Counter()  # keeps those above 0


def _key(headers: Headers) -> str | None:
    """The key that a request shows; None if there is none, or not exactly one."""
    values = headers.getlist("authorization")
    scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return key.strip() if scheme.lower() == "bearer" else None


async def _pieces(request: Request) -> AsyncGenerator[bytes]:
    """The body of a request, as it comes.

    Raises:
      Refused: it is too long, or not of the right type.
    """
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("Content-Encoding: a body must not be compressed", status=415)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("Content-Type must be application/json", status=415)
    too_long = Refused(f"the body must have at most {MOST_BYTES:,} bytes", status=413)
    if int(headers.get("content-length", 0)) > MOST_BYTES:  # h11 has checked that it is a number
        raise too_long
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MOST_BYTES:
            raise too_long
        yield piece


def _sent(headers: Headers) -> Asked:
    """What the headers say of a request; OpenAI's clients count how often they have sent it."""
    name = "x-stainless-retry-count"
    for one in (name, REQUEST_ID, EDGE_TYPE, EDGE_SOURCE):
        if len(headers.getlist(one)) > 1:  # which of them counts?
            raise Refused(f"the header {one} comes twice", param=one)
    text = headers.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 4):
        raise Refused(f"the header {name} must be a number below 1000", param=name)
    number, edge = declared(headers)
    return Asked("", retry=int(text), id=number, edge=edge)


async def _while_connected(request: Request, reply: Coroutine[Any, Any, int]) -> int:
    """Awaits a reply, and cancels it once the client has gone.

    Raises:
      ClientDisconnect: it has.
    """
    replying = asyncio.ensure_future(reply)
    gone = asyncio.ensure_future(request.receive())  # nothing else comes after the body
    try:
        await asyncio.wait({replying, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not replying.done():
            raise ClientDisconnect
        return replying.result()
    finally:
        replying.cancel()
        gone.cancel()
        await asyncio.gather(replying, gone, return_exceptions=True)


async def _reply(policy: Policy, wanted: wire.Wanted | wire.ToTokenize, send: Send) -> int:
    if not isinstance(wanted, wire.Wanted):
        return await _send(send, 200, await wire.tokenized(wanted, policy))
    form = wire.Form(wanted, secrets.token_hex(16), policy)
    if not wanted.stream:
        return await _send(send, 200, await form.body(await _answers(policy, wanted)))
    async with aclosing(_events(policy, wanted, form)) as events:
        first = await anext(events)  # what is refused by then has an answer with its status
        await _start(send, 200, {"content-type": "text/event-stream", "cache-control": "no-cache"})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:  # noqa: BLE001 -- logged, and told to the client
            event = wire.event(wire.error_body(_refusal(error)))
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
    return 200


def _refusal(error: Exception) -> Refused:
    """An error as its client gets it; the traceback of one that is no refusal is logged."""
    if isinstance(error, Refused):
        return error
    log.error("a request over HTTP failed", exc_info=error)
    reason = "the server failed to answer; its log has the reason"
    return Refused(reason, status=500, kind="server_error")


async def _answers(
    policy: Policy, wanted: wire.Wanted, told: Told | None = None
) -> Sequence[Answered]:
    """The answers to all prompts of a request; ``told`` gets the index among all choices."""

    def behind(first: int, told: Told) -> Told:
        return lambda index, *gain: told(first + index, *gain)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(policy.answer(one, told and behind(index * one.n, told)))
                for index, one in enumerate(wanted.asked)
            ]
    except* Refused as several:
        error = several.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    return [task.result() for task in tasks]


async def _events(policy: Policy, wanted: wire.Wanted, form: wire.Form) -> AsyncGenerator[bytes]:
    """The events of a stream; at least one."""
    gains: asyncio.Queue[tuple[int, Sequence[int], Sequence[float], str] | None] = asyncio.Queue()
    sent: dict[int, tuple[int, str]] = {}  # tokens and text of each choice
    answering = asyncio.ensure_future(
        _answers(policy, wanted, lambda *gain: gains.put_nowait(gain))
    )
    answering.add_done_callback(lambda _: gains.put_nowait(None))
    try:
        while (gain := await gains.get()) is not None:
            index, tokens, logprobs, text = gain
            count, before = sent.get(index, (0, ""))
            yield await form.gain(index, tokens, logprobs, text, begun=index in sent)
            sent[index] = count + len(tokens), before + text
        answers = answering.result()
        pairs = [(answered, choice) for answered in answers for choice in answered.choices]
        for index, (answered, choice) in enumerate(pairs):
            yield await form.end(index, answered, choice, sent.get(index))
        yield form.last(answers)
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    found = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": found})


async def _send(
    send: Send, status: int, found: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> int:
    data = wire.as_json(found)
    own = {"content-type": "application/json", "content-length": str(len(data))}
    await _start(send, status, {**own, **(headers or {})})
    await send({"type": "http.response.body", "body": data})
    return status
