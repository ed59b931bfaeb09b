"""Whose fault it is that a call ended."""

from collections.abc import Iterator

import grpc
import pytest

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS, gone


class Leaving(rpc.RolloutServicer):
    def __init__(self, code: grpc.StatusCode):
        self._code = code

    async def Generate(self, request_iterator, context):
        await context.abort(self._code, "it leaves")
        yield pb.Reply()


class Reading(rpc.RolloutServicer):
    async def Generate(self, request_iterator, context):
        async for _ in request_iterator:
            yield pb.Reply()


def large(count: int) -> Iterator[pb.GenerateRequest]:
    for _ in range(count):
        yield pb.GenerateRequest(requests=[pb.Request(context=bytes(4 << 20))])


@pytest.mark.parametrize(
    ("code", "messages", "is_gone"),
    [
        (grpc.StatusCode.UNAVAILABLE, 0, True),
        # gRPC breaks the call while a message is sent, and may not say why.
        (grpc.StatusCode.UNAVAILABLE, 64, True),
        (grpc.StatusCode.INTERNAL, 0, False),
        (grpc.StatusCode.INVALID_ARGUMENT, 0, False),
    ],
)
async def test_a_worker_that_is_gone_has_not_failed_at_a_request(code, messages, is_gone):
    server = grpc.aio.server(options=SERVER_OPTIONS)
    rpc.add_RolloutServicer_to_server(Leaving(code), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = rpc.RolloutStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [reply async for reply in stub.Generate(large(messages), timeout=60)]
    await server.stop(grace=None)
    assert gone(caught.value) is is_gone, caught.value


async def test_a_message_of_more_than_16_mib_does_not_pass():
    server = grpc.aio.server(options=SERVER_OPTIONS)
    rpc.add_RolloutServicer_to_server(Reading(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:  # its own limit is none
        request = pb.Request(context=bytes(16 << 20))
        asked = iter([pb.GenerateRequest(requests=[request])])
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            [reply async for reply in rpc.RolloutStub(channel).Generate(asked, timeout=60)]
    await server.stop(grace=None)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
