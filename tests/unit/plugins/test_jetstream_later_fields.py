"""What newer JetStream clients ask for reaches the engine, or is refused by name; over gRPC."""

import grpc
import pytest
from scripted_slots import DEADLINE_S, play, version
from streamed import stub_of, wholes

from rlax_plugin.weights.verification import take_version

pb = pytest.importorskip("jetstream.core.proto.jetstream_pb2")

SLOTS = 4  # of ``play``'s engine
_MOST = 4 * SLOTS


def varint(value: int) -> bytes:
    """As protobuf writes an integer; a negative one as 64 bits."""
    value, found = value & (1 << 64) - 1, bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def later(*fields: bytes, **content: object):
    """A request as a client of the later code sends it."""
    content = content or {"token_content": pb.DecodeRequest.TokenContent(token_ids=[1, 2])}
    request = pb.DecodeRequest(max_tokens=5, **content)
    request.MergeFromString(b"".join(fields))
    return request


TEXT = {"text_content": pb.DecodeRequest.TextContent(text="hello")}
REFUSED = [
    (later(field(8, -1)), "num_samples = -1: must be from 1 to 16"),
    (later(field(8, _MOST + 1)), "num_samples = 17"),
    (later(field(8, (1 << 31) - 1)), "num_samples = 2147483647"),
    (later(field(8, b"\x04")), "field 8 of DecodeRequest is not known"),
    (later(field(9, b"french")), "lora_adapter_id: this server has no adapters"),
    (later(field(10, 1), **TEXT), "has_bos: special tokens in text_content are plain text"),
    (later(field(11, 1)), "field 11 of DecodeRequest is not known"),
]
TAKEN = [
    (later(field(8, 4)), 4),
    (later(field(8, _MOST)), _MOST),
    (later(field(8, 2), field(8, 3)), 3),  # protobuf takes the last
    (later(field(8, 0)), 1),
    (later(), 1),
    (later(field(7, b"\x0d\0\0\x80?"), field(9, b""), field(10, 1)), 1),  # as upstream's benchmark
]


def test_several_samples_are_generated_or_the_field_is_refused():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        async with stub_of(engine) as stub:
            for request, count in TAKEN:
                replies = [r async for r in stub.Decode(request, timeout=DEADLINE_S)]
                samples = [tuple(one.token_ids) for one in wholes(replies)]
                assert [len(one) for one in samples] == [5] * count, request
                assert len(set(samples)) == count  # each with a seed of its own
            for request, why in REFUSED:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    [r async for r in stub.Decode(request, timeout=DEADLINE_S)]
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, request
                assert why in str(raised.value.details())

    play(scenario)
