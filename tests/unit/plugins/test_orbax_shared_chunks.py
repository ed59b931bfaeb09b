"""Memory for chunks that several shards share: limited, and used again."""

from __future__ import annotations

import numpy as np
import tensorstore as ts
from rlax_orbax.pieces import SharedChunks
from rlax_orbax.time_left import Clock

CHUNK = 400  # bytes


def sources(count, size=100):
    arrays = [np.arange(size, dtype=np.float32) + number for number in range(count)]
    return arrays, [ts.array(array) for array in arrays]


def finished(chunks, reads, arrays):
    """Finishes all reads in order; returns the most memory held, and whose memory was used."""
    clock, held, addresses = Clock("reading", 60), [], []
    for read, array in zip(reads, arrays, strict=True):
        np.testing.assert_array_equal(read.values(clock), array)
        held.append(chunks.held_bytes)
        addresses.append(read.memory.ctypes.data)
        chunks.release(read)
    return max(held), addresses


def test_reads_wait_for_memory_and_use_it_again():
    chunks = SharedChunks(3 * CHUNK)
    arrays, given = sources(10)
    reads = [chunks.read(source) for source in given]
    assert [read.memory.nbytes for read in reads] == [CHUNK] * 3 + [0] * 7
    held, addresses = finished(chunks, reads, arrays)
    assert held == 3 * CHUNK and len(set(addresses)) == 3


def test_a_chunk_that_is_too_large_is_read_alone():
    chunks = SharedChunks(1)
    arrays, given = sources(3)
    larger, more = sources(2, 250)
    reads = [chunks.read(source) for source in given + more]
    assert [read.memory.nbytes for read in reads] == [CHUNK, 0, 0, 0, 0]
    held, addresses = finished(chunks, reads, arrays + larger)
    assert held == 1000  # the smaller memory was given back
    assert len(set(addresses[:3])) == 1 == len(set(addresses[3:]))


def test_memory_of_another_size_makes_room():
    chunks = SharedChunks(1000)
    arrays, given = sources(2)
    assert finished(chunks, [chunks.read(source) for source in given], arrays)[0] == 800
    larger, more = sources(1, 250)
    assert finished(chunks, [chunks.read(source) for source in more], larger)[0] == 1000
    assert chunks.held_bytes == 1000
