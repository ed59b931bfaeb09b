"""Another local user who takes a port over and plays the server that listened there.

``python other_user_server.py`` reads its order, JSON, and writes a line for each thing that happens
until it is killed. The personas, or those that the order names, take turns, connection by
connection: one that says nothing, a gRPC server without TLS, one with a certificate of its own that
has all names of the right one, and one that shows the right certificate, which anybody can fetch,
behind its own. Each takes every call.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc

_BIND_S = 60.0  # for a port that is not free yet
_PAUSE_S = 0.01  # between two tries; nobody else is to be quicker
_SILENT_S = 3.0  # for a client that is not answered


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class EveryMethod(grpc.GenericRpcHandler):
    """Takes every call, and says what came with it."""

    def __init__(self, persona: str):
        self._persona = persona

    def service(self, handler_call_details: Any) -> Any:
        metadata = [(key, repr(value)) for key, value in handler_call_details.invocation_metadata]
        tell(persona=self._persona, method=handler_call_details.method, metadata=metadata)
        return grpc.stream_stream_rpc_method_handler(self._take)

    async def _take(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            tell(persona=self._persona, message=message.hex())
            yield b""


async def grpc_server(persona: str, pair: tuple[bytes, bytes] | None) -> int:
    """The port of a server that takes every call."""
    server = grpc.aio.server(handlers=(EveryMethod(persona),))
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    SERVERS.append(server)
    return port


SERVERS: list[grpc.aio.Server] = []


async def pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, persona: str = ""
) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            if persona:
                tell(persona=persona, bytes=data.hex())
            target.write(data)
            await target.drain()
    target.close()


async def main() -> None:
    order = json.loads(sys.stdin.readline())
    key, own, right = (order[name].encode() for name in ("key", "certificate", "right"))
    personas = {
        "silent": 0,
        "plain": await grpc_server("plain", None),
        "own certificate": await grpc_server("own certificate", (key, own)),
        "right one behind": await grpc_server("right one behind", (key, own + right)),
    }
    played = order.get("personas") or [*personas]
    turns = itertools.cycle([(persona, personas[persona]) for persona in played])

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        persona, port = next(turns)
        tell(connected=persona)
        if not port:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_SILENT_S):
                    while data := await reader.read(1 << 16):
                        tell(persona=persona, bytes=data.hex())
            writer.close()
            return
        answers, way = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, way, persona), pass_on(answers, writer))

    tell(user=os.getuid())
    async with asyncio.timeout(_BIND_S):
        while True:
            try:
                listener = await asyncio.start_server(meet, "127.0.0.1", order["port"])
                break
            except OSError as error:
                tell(taken=error.strerror)
                await asyncio.sleep(_PAUSE_S)
    tell(bound=order["port"])
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
