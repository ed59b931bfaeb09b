"""Answers bytes that are not a message of the called method with one clear status.

gRPC itself would log a traceback and answer UNKNOWN, as if the method had failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

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
