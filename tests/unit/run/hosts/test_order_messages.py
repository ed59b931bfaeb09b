"""Orders travel unchanged, and messages that are not those of an order are rejected."""

import asyncio

import numpy as np
import pytest

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.ports.orders import Order
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.run.hosts import wire

LIMIT = 64 << 20


def read(messages, number=0, most_bytes=LIMIT):
    async def stream():
        for message in messages:
            yield message

    return asyncio.run(wire.read_order(stream(), number, most_bytes))


def test_an_order_arrives_as_it_was_sent():
    rng = np.random.default_rng(0)
    arrays = {
        "tokens": rng.integers(0, 99, (3, 5)).astype(np.int32),
        "big_endian": np.arange(6, dtype=">f4").reshape(2, 3),
        "none": np.zeros((0, 7), np.float64),
        "scalar": np.float32(2.5) * np.ones(()),
        "transposed": np.arange(12).reshape(3, 4).T,
        "mask": np.array([True, False]),
    }
    order = Order("update", {"rows": "3"}, arrays)
    found = read(list(wire.pieces(7, order)), 7)
    assert (found.kind, found.settings) == ("update", {"rows": "3"})
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].dtype == array.dtype.newbyteorder("<")


def test_large_arrays_are_sent_in_pieces_that_need_not_end_with_an_array():
    arrays = {name: np.arange(1_500_000, dtype=np.int32) + n for n, name in enumerate("abc")}
    messages = list(wire.pieces(0, Order("update", arrays=arrays)))
    assert [len(m.data) for m in messages] == [0] + 3 * [4 << 20, 6_000_000 - (4 << 20)]
    whole = b"".join(m.data for m in messages)
    cut = [whole[i : i + 1_000_003] for i in range(0, len(whole), 1_000_003)]
    found = read([messages[0], *(pb.OrderPiece(data=part) for part in cut)])
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_no_message_is_no_order():
    assert read([]) is None


def head(**fields):
    array = {"name": "a", "dtype": "<i4", "shape": [2, 3]} | fields
    return pb.OrderPiece(kind="update", arrays=[pb.OrderArray(**array)])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([head(), pb.OrderPiece(data=b"x" * 23)], "fewer bytes than order 0 has"),
        ([head(), pb.OrderPiece(data=b"x" * 25)], "more bytes than order 0 has"),
        ([head()], "fewer bytes"),
        ([pb.OrderPiece(number=3)], "sent order 3, expected 0"),
        ([head(dtype="O")], "no array of a batch"),
        ([head(dtype="nonsense")], "with dtype 'nonsense'"),
        ([head(shape=[-1, 4])], "no array of a batch"),
        ([head(shape=[1] * 9)], "no array of a batch"),
        ([head(shape=[1 << 40, 1 << 40])], "too large"),
        ([head(shape=[17_000_000])], "too large"),
        ([pb.OrderPiece(arrays=2 * [pb.OrderArray(name="a", dtype="<i4", shape=[1])])], "repeats"),
    ],
)
def test_what_is_not_an_order_is_rejected(messages, reason):
    with pytest.raises(TrainingError, match=reason):
        read(messages)
