"""JetStream's service of an engine, and whole completions of the messages that it streams."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc
from rlax_jetstream.driver import JetStreamDriver
from rlax_jetstream.servicer import add_jetstream_service

_DEADLINE_S = 60.0


class Whole(NamedTuple):
    text: str
    token_ids: list[int]


def wholes(messages: Iterable[Any]) -> list[Whole]:
    """Each completion of a request, by its place in the messages."""
    return joined(message.stream_content.samples for message in messages)


def joined(parts: Iterable[Sequence[Any]]) -> list[Whole]:
    """The same for the samples of each message."""
    parts = list(parts)
    assert len({len(samples) for samples in parts}) == 1, parts
    return [
        Whole(
            "".join(t for one in same for t in one.text), [i for one in same for i in one.token_ids]
        )
        for same in zip(*parts, strict=True)
    ]


@asynccontextmanager
async def stub_of(engine: Any) -> AsyncIterator[Any]:
    """A stub of the service, over gRPC."""
    from jetstream.core.proto import jetstream_pb2_grpc as rpc

    server, drivers = grpc.aio.server(), list[JetStreamDriver]()

    def driver(engine: Any) -> JetStreamDriver:
        drivers.append(JetStreamDriver(engine))
        return drivers[-1]

    port = server.add_insecure_port("127.0.0.1:0")
    try:
        with patch("rlax_jetstream.servicer.JetStreamDriver", driver):
            answers = add_jetstream_service(server, engine)
            await server.start()
            await asyncio.wait_for(asyncio.wrap_future(answers), _DEADLINE_S)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rpc.OrchestratorStub(channel)
    finally:
        await server.stop(None)
        for one in drivers:  # not ``stop``, which closes the test's engine, too
            one._encoding.shutdown(wait=False)
            one._answering.shutdown(wait=False)
