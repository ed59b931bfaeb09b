"""The fingerprint against its definition, and what it must and must not notice."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rlax_plugin.weights.device_fingerprint import fingerprint
from rlax_plugin.weights.fingerprint import fingerprint_numpy

RNG = np.random.default_rng(0)


def of(array, name="w"):
    return int(fingerprint({name: jnp.asarray(array)})[name])


def by_definition(array, name="w"):
    """The module's formula in Python integers, one element at a time (4-byte dtypes)."""
    import zlib

    total = 0
    for i, bits in enumerate(np.asarray(array).reshape(-1).view(np.uint32).tolist()):
        mixed = i * 0x9E3779B1 % 2**32
        total += (bits ^ bits >> 16) * ((mixed ^ mixed >> 15) | 1)
    return total * (zlib.crc32(name.encode()) | 1) % 2**32


def test_equals_the_definition_in_python_integers():
    array = RNG.standard_normal((5, 7)).astype(np.float32)
    assert of(array) == by_definition(array) == int(fingerprint_numpy({"w": array})["w"])


def test_is_the_same_number_in_every_release():
    # Worked out by hand: element 0 has the factor 1, so only 0x3F800000 ^ 0x3F80 remains.
    assert of(np.ones(1, np.float32), name="") == 0x3F803F80
    # Factor of element 1: (0x9E3779B1 ^ 0x13C6E) | 1 = 0x9E3645DF.
    assert of(np.array([0, 1], np.uint32), name="") == 0x9E3645DF


DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "bool", "float8_e4m3fn", "int4")


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, (3, 5)) for dtype in DTYPES),
        *((dtype, s) for dtype in ("uint8", "float32") for s in ((), (0,), (65553,), (4, 64, 999))),
    ],
)
def test_device_equals_numpy(dtype, shape):
    array = RNG.integers(0, 2 if dtype == "bool" else 7, shape)
    array = np.asarray(jnp.asarray(array).astype(dtype))
    assert of(array) == int(fingerprint_numpy({"w": array})["w"])


def test_64_bit_elements_count_as_two_words():
    with jax.enable_x64(True):
        array = RNG.standard_normal(65536 + 5)
        device = jnp.asarray(array)
        assert device.dtype == np.float64
        expected = int(fingerprint_numpy({"w": array})["w"])
        assert int(fingerprint({"w": device})["w"]) == expected
        assert int(fingerprint_numpy({"w": array.view(np.uint32)})["w"]) == expected


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_every_single_flipped_bit_changes_it(dtype):
    array = RNG.standard_normal(67).astype(dtype)
    bits = array.view({4: np.uint32, 2: np.uint16}[array.dtype.itemsize])
    width = bits.itemsize * 8
    before = fingerprint_numpy({"w": array})["w"]
    for position in range(bits.size):
        for bit in range(width):
            bits[position] ^= bits.dtype.type(1 << bit)
            assert fingerprint_numpy({"w": array})["w"] != before, (position, bit)
            bits[position] ^= bits.dtype.type(1 << bit)
    assert fingerprint_numpy({"w": array})["w"] == before


def test_swapped_tensors_and_renames_are_noticed():
    a, b = (jnp.asarray(RNG.standard_normal((8, 8)), jnp.float32) for _ in range(2))
    right, swapped = fingerprint({"a": a, "b": b}), fingerprint({"a": b, "b": a})
    assert int(right["a"]) != int(swapped["a"]) and int(right["b"]) != int(swapped["b"])
    assert int(fingerprint({"c": a})["c"]) != int(right["a"])


def test_swapped_rows_are_noticed_even_where_low_bits_are_zero():
    # float32 values that came from bfloat16: the low 16 bits are zero.
    array = RNG.standard_normal((256, 256)).astype(ml_dtypes.bfloat16).astype(np.float32)
    prints = {of(np.roll(array, shift, axis=0)) for shift in range(64)}
    assert len(prints) == 64


def test_dtypes_without_a_bit_view_are_rejected():
    with pytest.raises(TypeError, match="complex64"):
        fingerprint({"w": jnp.zeros(3, jnp.complex64)})
    with pytest.raises(TypeError, match="complex64"):
        fingerprint_numpy({"w": np.zeros(3, np.complex64)})
