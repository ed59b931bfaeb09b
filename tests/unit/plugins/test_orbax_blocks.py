"""Divides reading into whole chunks, each of which is read once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlax_orbax.pieces import Block, blocks_of, inside


def test_shards_that_consist_of_whole_chunks_are_read_into_their_buffers():
    top, bottom = ((0, 4), (0, 6)), ((4, 8), (0, 6))
    assert blocks_of([top, bottom], (8, 6), (2, 6)) == [
        Block(top, (top,)),
        Block(bottom, (bottom,)),
    ]


def test_one_shard_is_one_block_wherever_its_chunks_end():
    part = ((1, 7), (0, 6))
    assert blocks_of([part], (8, 6), (2, 6)) == [Block(part, (part,))]
    assert blocks_of([()], (), ()) == [Block((), ((),))]


def test_a_chunk_of_two_shards_is_a_block_of_its_own():
    left, right = ((0, 8), (0, 3)), ((0, 8), (3, 6))
    assert blocks_of([left, right], (8, 6), (4, 6)) == [
        Block(((0, 4), (0, 6)), (left, right)),
        Block(((4, 8), (0, 6)), (left, right)),
    ]


def test_what_belongs_to_no_shard_of_this_process_is_not_read():
    # Chunks of 4: the second holds the end of one shard and nothing else that is needed.
    first, second = ((0, 2),), ((2, 6),)
    assert blocks_of([first, second], (12,), (4,)) == [
        Block(((0, 4),), (first, second)),
        Block(((4, 6),), (second,)),
    ]


def test_common_elements_are_found_in_both():
    here, there = inside(((2, 8), (0, 4)), ((0, 5), (1, 9)))
    assert here == (slice(0, 3), slice(1, 4)) and there == (slice(2, 5), slice(0, 3))


@st.composite
def cases(draw):
    """Shape, chunk, and some shards of an array that is divided evenly along each axis."""
    axes = draw(st.integers(1, 3))
    chunk = [draw(st.integers(1, 4)) for _ in range(axes)]
    shape = [c * draw(st.integers(1, 4)) for c in chunk]
    parts = [draw(st.sampled_from([p for p in (1, 2, 3, 4) if n % p == 0])) for n in shape]
    intervals = [
        [(i * n // p, (i + 1) * n // p) for i in range(p)]
        for n, p in zip(shape, parts, strict=True)
    ]
    pieces = list(itertools.product(*intervals))
    kept = draw(st.lists(st.sampled_from(pieces), unique=True, min_size=1))
    return tuple(shape), tuple(chunk), kept


@pytest.mark.property
@given(cases())
def test_every_element_comes_to_its_shard_and_no_chunk_is_read_twice(case):
    shape, chunk, pieces = case
    array = np.arange(np.prod(shape)).reshape(shape)
    buffers = {piece: np.full([b - a for a, b in piece], -1) for piece in pieces}
    chunks_read = []
    for block in blocks_of(pieces, shape, chunk):
        values = array[tuple(slice(a, b) for a, b in block.bounds)]
        for piece in block.pieces:
            here, there = inside(block.bounds, piece)
            buffers[piece][there] = values[here]
        if len(block.pieces) == 1:
            (piece,) = block.pieces
            assert all(a <= c < d <= b for (a, b), (c, d) in zip(piece, block.bounds, strict=True))
        cells = [range(a // c, -(-b // c)) for (a, b), c in zip(block.bounds, chunk, strict=True)]
        chunks_read += itertools.product(*cells)
    for piece, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, array[tuple(slice(a, b) for a, b in piece)])
    assert len(chunks_read) == len(set(chunks_read))
    needed = {
        cell
        for piece in pieces
        for cell in itertools.product(
            *(range(a // c, -(-b // c)) for (a, b), c in zip(piece, chunk, strict=True))
        )
    }
    assert set(chunks_read) == needed
