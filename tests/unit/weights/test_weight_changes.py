"""Changes between versions: any bits come back, and nothing else is taken for changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtext_overrides.sampler.layer_major import LayerMajor
from rlax_plugin.errors import WeightsError
from rlax_plugin.testing.builders import tensor_specs
from rlax_plugin.weights import deltas
from rlax_plugin.weights.changing import _DeviceCopy, changing
from rlax_plugin.weights.deltas import Changes, bits_of

DTYPES = ["bfloat16", "float32", "float16", "int8", "int32", "uint8", "bool", "float8_e4m3fn"]
EVERYTHING = 1 << 40  # bytes

# Bits of bfloat16: 0.0, -0.0, denormals, infinities, quiet and signalling NaN of several payloads.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x7F80, 0xFF80, 0x7F81, 0xFFC1, 0x7FFF, 0x3F80]

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
trees = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4), st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4
)


def of_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array of any bits, among them all kinds of NaN."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    raw = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    return np.ascontiguousarray(raw).view(kind).reshape(shape)


def same_bits(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    equal = (one.shape, one.dtype) == (other.shape, other.dtype)
    return equal and bool((bits_of(one) == bits_of(other)).all())


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Changes]]:
    found = deltas.encoded(before, after, EVERYTHING)
    assert found is not None
    specs = tensor_specs({name: np.asarray(array) for name, array in after.items()})
    slices: dict[str, list[Changes]] = {}
    for name, changes in deltas.decoded(found["gaps"], found["values"], specs):
        slices.setdefault(name, []).append(changes)
    return slices


def applied(array: Any, slices: list[Changes], on_device: bool = False) -> Any:
    """The changed array; ``on_device``: as on an accelerator, of which there is none here."""
    copy = _DeviceCopy(array, 0, own=False) if on_device else changing(array)
    for changes in slices:
        copy.change(changes)
    return copy.changed()


@given(trees, st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.3, 1.0]))
@settings(deadline=None, max_examples=150)
def test_any_tree_comes_back_to_the_bit(tree: dict[str, Any], seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    before = {name: of_bits(rng, *kind) for name, kind in tree.items()}
    after = {}
    for name, (shape, dtype) in tree.items():
        other = of_bits(rng, shape, dtype)
        after[name] = np.where(rng.random(shape) < share, other, before[name]).astype(dtype)
        after[name] = after[name].reshape(shape)
    found = changed(before, after)
    for name, array in before.items():
        untouched = array.copy()
        new = applied(array, found[name]) if name in found else array
        assert same_bits(new, after[name]) and same_bits(array, untouched)
        places = np.flatnonzero(bits_of(array) != bits_of(after[name]))
        given = [slice.places for slice in found.get(name, [])]
        assert np.concatenate([np.zeros(0, int), *given]).tolist() == places.tolist()


@given(st.lists(st.tuples(*[st.sampled_from(SPECIAL)] * 2), min_size=1, max_size=40))
@settings(deadline=None)
def test_special_values_of_bfloat16_are_compared_and_set_by_their_bits(pairs: Any) -> None:
    before, after = (
        np.array(side, np.uint16).view(ml_dtypes.bfloat16) for side in zip(*pairs, strict=True)
    )
    found = changed({"w": before}, {"w": after})
    assert ("w" in found) == any(a != b for a, b in pairs)
    if "w" in found:
        assert same_bits(applied(before, found["w"]), after)
        for on_device in (False, True):
            assert same_bits(applied(jnp.asarray(before), found["w"], on_device), after)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", "int32", "bool", "int4"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 4), (1500, 3)])
def test_arrays_on_devices_change_like_those_on_the_host(dtype: str, shape: Any) -> None:
    rng = np.random.default_rng(0)
    whole = np.asarray(jnp.asarray(rng.integers(0, 2, shape)).astype(dtype))
    other = np.asarray(jnp.asarray(1 - rng.integers(0, 2, shape)).astype(dtype))
    found = changed({"w": whole}, {"w": other})
    if "w" in found:
        array = jnp.asarray(whole)
        for on_device in (False, True):
            new = applied(array, found["w"], on_device)
            assert new.sharding == array.sharding and same_bits(new, other)
            assert same_bits(array, whole)


def test_weights_laid_out_by_layer_change_at_their_published_places() -> None:
    rng = np.random.default_rng(0)
    before = rng.standard_normal((4, 3, 5)).astype(ml_dtypes.bfloat16)
    after = np.where(rng.random((4, 3, 5)) < 0.3, -before, before)
    laid_out = LayerMajor(jnp.moveaxis(jnp.asarray(before), 1, 0), 1)
    new = applied(laid_out, changed({"w": before}, {"w": after})["w"])
    assert new.array.shape == (3, 4, 5) and same_bits(new.published(), after)
    assert same_bits(laid_out.published(), before)


def test_the_bytes_are_those_of_the_description() -> None:
    before = {"b": np.zeros(600, np.uint16), "a": np.zeros(2, np.uint8)}
    after = {name: array.copy() for name, array in before.items()}
    after["a"][1], after["b"][[0, 1, 256, 511, 599]] = 9, [1, 2, 3, 4, 0x1234]
    found = deltas.encoded(before, after, EVERYTHING)
    assert found is not None
    # a has the numbers 0 and 1, b those from 2 on.
    assert found["gaps"].tolist() == [1, 1, 1, 255, 0, 255, 0, 88]
    assert found["values"].tolist() == [9, 1, 0, 2, 0, 3, 0, 4, 0, 0x34, 0x12]


def test_changes_that_are_too_large_are_not_made() -> None:
    before, after = {"w": np.zeros(100, np.uint16)}, {"w": np.ones(100, np.uint16)}
    assert deltas.encoded(before, after, 299) is None
    assert deltas.encoded(before, after, 300) is not None
    far = {"w": np.zeros(1000, np.uint16)}
    last = {"w": np.concatenate([np.zeros(999, np.uint16), [1]]).astype(np.uint16)}
    assert deltas.encoded(far, last, 5) is None  # 999 = 3 x 255 + 234: 4 bytes and 2
    assert deltas.encoded(far, last, 6) is not None


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("count", [4095, 4096, 4097, 70_000])
def test_changes_in_slices_are_the_same_ones(monkeypatch, count: int, on_device: bool) -> None:
    """The numbers of elements that programs are compiled for, and slices that end anywhere."""
    monkeypatch.setattr(deltas, "_DECODED", 1 << 14)
    rng = np.random.default_rng(count)
    before = {name: rng.standard_normal((300, 500)).astype(ml_dtypes.bfloat16) for name in "ab"}
    after = {name: array.copy() for name, array in before.items()}
    for array in after.values():
        array.reshape(-1)[rng.choice(array.size, count, replace=False)] *= -1
    for name, slices in changed(before, after).items():
        assert len(slices) > count >> 14 and sum(len(one.places) for one in slices) == count
        array = jnp.asarray(before[name]) if on_device else before[name]
        assert same_bits(applied(array, slices, on_device), after[name])
        assert same_bits(array, before[name])


@pytest.mark.parametrize("size", [0, 5, (1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_large_arrays_are_stored_with_zeros_at_the_end(size: int) -> None:
    array = np.ones(size, np.uint8)
    found = deltas.stored({"gaps": array})["gaps"]
    assert len(found) == (size if size < 1 << 16 else -(-size // (1 << 16)) * (1 << 16))
    assert found[:size].tolist() == array.tolist() and not found[size:].any()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, r"'w' was .*\(3, 2\).*, and is .*\(2, 3\)"),
        ({"w": np.zeros((3, 2), np.int32)}, "'w' was .*float32.*, and is .*int32"),
        ({"v": np.zeros((3, 2), np.float32)}, "'v' was None"),
    ],
)
def test_other_shapes_dtypes_and_names_are_refused(other: Any, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        deltas.encoded({"w": np.zeros((3, 2), np.float32)}, other, EVERYTHING)


@pytest.mark.parametrize(
    ("gaps", "values", "message"),
    [
        ([255], [], "the last gap has no end"),
        ([1, 0], [1, 2], "an element changes twice"),
        ([6], [1], "element 6 changes, and there are 6"),
        ([0, 255, 255, 2], [1, 2], "element 512 changes"),
        ([0, 1], [1], "fewer values than gaps"),
        ([4], [1], "fewer values than gaps"),  # of v, which has two bytes
        ([0], [1, 2], "more values than gaps"),
        ([], [1], "more values than gaps"),
    ],
)
def test_what_are_no_changes_is_refused(gaps: list[int], values: list[int], message: str) -> None:
    specs = tensor_specs({"u": np.zeros((2, 2), np.int8), "v": np.zeros(2, np.int16)})
    arrays = (np.array(given, np.uint8) for given in (gaps, values))
    with pytest.raises(WeightsError, match=message):
        list(deltas.decoded(*arrays, specs))


@given(st.binary(max_size=30), st.binary(max_size=30))
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_changes_of_the_variables_or_refused(gaps: bytes, values: bytes) -> None:
    specs = tensor_specs({"u": np.zeros(300, np.int8), "v": np.zeros((3, 5), np.int16)})
    try:
        arrays = (np.frombuffer(given, np.uint8) for given in (gaps, values))
        found = list(deltas.decoded(*arrays, specs))
    except WeightsError:
        return
    for name, one in found:
        size = specs[name].nbytes // np.dtype(specs[name].dtype).itemsize
        assert len(one.places) == len(one.bits) and 0 <= one.places[0] <= one.places[-1] < size
    assert sum(one.bits.nbytes for _, one in found) == len(values)
