"""Orders as messages: a head, then the bytes of all arrays in pieces."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Iterator

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.ports.orders import Order
from rlax_plugin.rpc import rlax_pb2 as pb

PIECE_BYTES = 4 << 20
_KINDS = "biuf"  # of numpy's dtypes: numbers without pointers
_MOST_ARRAYS, _MOST_AXES = 256, 8


def nbytes_of(order: Order) -> int:
    """Bytes of an order's arrays."""
    return sum(array.nbytes for array in order.arrays.values())


def pieces(number: int, order: Order) -> Iterator[pb.OrderPiece]:
    """The messages of an order.

    Args:
      number: its number, from 0.
    """
    arrays = {name: _little_endian(array) for name, array in order.arrays.items()}
    yield pb.OrderPiece(
        number=number,
        kind=order.kind,
        settings=order.settings,
        arrays=[
            pb.OrderArray(name=name, dtype=array.dtype.str, shape=array.shape)
            for name, array in arrays.items()
        ],
    )
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, PIECE_BYTES):
            yield pb.OrderPiece(data=flat[start : start + PIECE_BYTES].tobytes())


def _little_endian(array: np.ndarray) -> np.ndarray:
    # Not ascontiguousarray, which gives a scalar an axis.
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


async def read_order(
    messages: AsyncIterable[pb.OrderPiece], number: int, most_bytes: int
) -> Order | None:
    """Puts an order together from its messages; None if there are none.

    Args:
      number: the expected number.
      most_bytes: limit for its arrays; nothing is allocated for a larger order.

    Raises:
      TrainingError: they are not the messages of this order.
    """
    head: pb.OrderPiece | None = None
    arrays: dict[str, np.ndarray] = {}
    rest: list[np.ndarray] = []  # bytes to fill, in order
    async for message in messages:
        if head is None:
            head = message
            if message.number != number:
                raise TrainingError(f"host 0 sent order {message.number}, expected {number}")
            arrays = _allocated(message, most_bytes)
            rest = [array.reshape(-1).view(np.uint8) for array in arrays.values() if array.size]
            continue
        data = np.frombuffer(message.data, np.uint8)
        while data.size:
            if not rest:
                raise TrainingError(f"host 0 sent more bytes than order {number} has")
            count = min(rest[0].size, data.size)
            rest[0][:count] = data[:count]
            data, rest[0] = data[count:], rest[0][count:]
            if not rest[0].size:
                rest.pop(0)
    if head is None:
        return None
    if rest:
        raise TrainingError(f"host 0 sent fewer bytes than order {number} has")
    return Order(head.kind, dict(head.settings), arrays)


def _allocated(head: pb.OrderPiece, most_bytes: int) -> dict[str, np.ndarray]:
    """Empty arrays of an order.

    Raises:
      TrainingError: they cannot be those of an order.
    """
    found: dict[str, np.ndarray] = {}
    total = 0
    for said in head.arrays:
        name, shape = one_line(said.name), tuple(said.shape)
        try:
            dtype = np.dtype(said.dtype)
        except (TypeError, ValueError) as error:
            raise TrainingError(f"host 0 sent {name} with dtype {said.dtype!r}") from error
        if dtype.kind not in _KINDS or len(shape) > _MOST_AXES or min(shape, default=0) < 0:
            raise TrainingError(f"host 0 sent {name} as {dtype}{list(shape)}: no array of a batch")
        total += math.prod(shape) * dtype.itemsize
        if total > most_bytes or len(found) >= _MOST_ARRAYS or said.name in found:
            reason = f"{len(head.arrays)} arrays of {total:,} bytes or more, at most {most_bytes:,}"
            raise TrainingError(f"host 0 sent an order that is too large or repeats: {reason}")
        found[said.name] = np.empty(shape, dtype)
    return found
