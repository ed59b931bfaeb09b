"""The changes between two versions of the same variables, exact to the bit.

An update of reinforcement learning changes few weights once these are rounded to bfloat16: 2 to 3
of 100 in a step of SmolLM2. So the changes are much smaller than the weights.

All elements are numbered: the variables in the order of their names, the elements of each in
row-major order. Elements are compared by their bits, so NaN with another payload and -0.0 after 0.0
are changes. The changes are two arrays of bytes:

- ``gaps``: the number of the first changed element, and for each further one the distance from the
  one before. A gap of 255 q + r, with r below 255, is q bytes of 255 and one of r.
- ``values``: the bytes of the changed elements, little-endian, as many as each one's dtype has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its like under their names
import numpy as np

from rlax_plugin.errors import WeightsError
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.types import TensorSpec, VersionPart

GAPS, VALUES = "gaps", "values"

_MORE = 255  # the gap goes on in the next byte
_COMPARED = 1 << 24  # elements that are compared at once: an index of each may be needed
_DECODED = 1 << 20  # gaps that are decoded at once, and elements that are changed at once
_STORED = 1 << 16  # bytes; larger arrays are filled up to a multiple, which stores can divide
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes of an element


@dataclass(frozen=True, slots=True)
class Changes:
    """Some changed elements of one variable.

    Attributes:
      places: int64 [n], their row-major indices, increasing; at least one.
      bits: unsigned integers [n] of the width of the variable's dtype.
    """

    places: np.ndarray
    bits: np.ndarray


def bits_of(array: Any) -> np.ndarray:
    """The elements of an array as unsigned integers, flat; without a copy if it is contiguous."""
    hosted = np.ascontiguousarray(array)
    return hosted.reshape(-1).view(_BITS[hosted.dtype.itemsize])


def encoded(before: Arrays, after: Arrays, most_bytes: int) -> dict[str, np.ndarray] | None:
    """The changes from some variables to others of the same names, shapes and dtypes.

    Args:
      before, after: name -> array on the host or a device.
      most_bytes: limit of the bytes.

    Returns:
      ``gaps`` and ``values``, uint8; None: they would take more than ``most_bytes``.

    Raises:
      WeightsError: a name, shape or dtype differs.
    """
    if (was := _shapes(before)) != (now := _shapes(after)):
        name = min(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        reason = f"variable {name!r} was {was.get(name)}, and is {now.get(name)}"
        raise WeightsError(f"there are no changes between weights of two models: {reason}")
    gaps: list[np.ndarray] = []
    values: list[np.ndarray] = []
    size, first, last = 0, 0, 0
    for name in sorted(after):
        old, new = bits_of(before[name]), bits_of(after[name])
        for start in range(0, new.size, _COMPARED):
            block = new[start : start + _COMPARED]
            changed = block != old[start : start + _COMPARED]
            count = int(np.count_nonzero(changed))
            size += count * (1 + new.dtype.itemsize)
            if size > most_bytes:
                return None
            if not count:
                continue
            found = np.flatnonzero(changed)
            gaps.append(_in_bytes(np.diff(found + (first + start), prepend=last)))
            values.append(block[found].astype(new.dtype.newbyteorder("<")).view(np.uint8))
            size += len(gaps[-1]) - count
            last = first + start + int(found[-1])
        first += new.size
    if size > most_bytes:
        return None
    empty = np.zeros(0, np.uint8)
    return {GAPS: np.concatenate([empty, *gaps]), VALUES: np.concatenate([empty, *values])}


def _shapes(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(a.shape), np.dtype(a.dtype).name) for name, a in arrays.items()}


def _in_bytes(gaps: np.ndarray) -> np.ndarray:
    times, rest = np.divmod(gaps, _MORE)
    ends = np.cumsum(times + 1)
    found = np.full(int(ends[-1]), _MORE, np.uint8)
    found[ends - 1] = rest
    return found


def decoded(
    gaps: np.ndarray, values: np.ndarray, tensors: Mapping[str, TensorSpec]
) -> Iterator[tuple[str, Changes]]:
    """Yields the changes of the variables, in order and in slices of at most a million elements.

    It is the inverse of ``encoded``, and needs memory for one slice at a time.

    Args:
      tensors: the variables, by name.

    Raises:
      WeightsError: these are not changes of these variables; earlier slices have been yielded.
    """
    if gaps.size and gaps[-1] == _MORE:
        raise WeightsError("the last gap has no end")
    names = sorted(tensors)
    # The numbers behind the last element of each variable.
    ends = np.cumsum([_elements(tensors[name]) for name in names], dtype=np.int64)
    total = int(ends[-1]) if names else 0
    last, used = -1, 0
    begun = np.int64(0)  # sum of all gaps so far
    for start in range(0, gaps.size, _DECODED):
        block = gaps[start : start + _DECODED]
        sums = begun + np.cumsum(block, dtype=np.int64)
        begun, places = sums[-1], sums[block != _MORE]
        if (np.diff(places, prepend=last) <= 0).any():
            raise WeightsError("an element changes twice")
        last = int(places[-1]) if len(places) else last
        if last >= total:
            raise WeightsError(f"element {last:,} changes, and there are {total:,}")
        while len(places):
            place = int(np.searchsorted(ends, places[0], side="right"))
            first = int(ends[place - 1]) if place else 0
            width = np.dtype(tensors[names[place]].dtype).itemsize
            count = int(np.searchsorted(places, ends[place]))
            raw = values[used : (used := used + count * width)]
            if len(raw) < count * width:
                raise WeightsError("there are fewer values than gaps")
            bits = np.ascontiguousarray(raw).view(np.dtype(_BITS[width]).newbyteorder("<"))
            yield names[place], Changes(places[:count] - first, bits.astype(_BITS[width]))
            places = places[count:]
    if used < values.size:
        raise WeightsError("there are more values than gaps")


def stored(changes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of ``encoded`` as a store gets them, with zeros at the end of large ones."""
    return {
        name: np.concatenate([array, np.zeros(_stored(array.size) - array.size, np.uint8)])
        for name, array in changes.items()
    }


def _stored(size: int) -> int:
    return size if size < _STORED else -(-size // _STORED) * _STORED


def read(
    part: VersionPart, tensors: Mapping[str, TensorSpec], store: WeightStore
) -> Iterator[tuple[str, Changes]]:
    """Yields the changes that a part holds, from its path; see ``decoded``.

    Raises:
      WeightsError: they are damaged, or not changes of these variables.
      Others: those of ``WeightStore.load``.
    """
    assert part.delta is not None, "a part of the format delta has a size"
    sizes = {GAPS: part.delta.gaps, VALUES: part.delta.values}
    elements = sum(map(_elements, tensors.values()))
    # Every variable may have changed entirely; before that many bytes are allocated.
    whole = sum(spec.nbytes for spec in tensors.values())
    most = {GAPS: elements + elements // _MORE, VALUES: whole}
    for name, size in sizes.items():
        if size > most[name]:
            raise WeightsError(f"{part.path} has {size:,} bytes of {name}, of {most[name]:,}")
    like = {name: np.empty(_stored(size), np.uint8) for name, size in sizes.items()}
    arrays = {name: np.asarray(array) for name, array in store.load(part.path, like).items()}
    if _shapes(arrays) != _shapes(like):
        raise WeightsError(f"{part.path} has {_shapes(arrays)}, and not {_shapes(like)}")
    gaps, values = (arrays[name][:size] for name, size in sizes.items())
    try:
        yield from decoded(gaps, values, tensors)
    except WeightsError as error:
        raise WeightsError(f"{part.path} has no changes of part {part.name}: {error}") from error


def _elements(spec: TensorSpec) -> int:
    return spec.nbytes // np.dtype(spec.dtype).itemsize
