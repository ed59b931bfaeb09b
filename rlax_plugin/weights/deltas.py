"""What has changed between two versions of the same variables, exact to the bit.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its like under their names
import numpy as np

from rlax_plugin.errors import WeightsError
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.types import TensorSpec, VersionPart

GAPS, VALUES = "gaps", "values"

_MORE = 255  # the gap goes on in the next byte
_BLOCK = 1 << 24  # elements that are compared at once: an index of each may be needed
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes of an element


@dataclass(frozen=True, slots=True)
class Changes:
    """The changed elements of one variable.

    Attributes:
      places: int64 [n], their row-major indices, increasing.
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
        for start in range(0, new.size, _BLOCK):
            block = new[start : start + _BLOCK]
            changed = block != old[start : start + _BLOCK]
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
) -> dict[str, Changes]:
    """The changes of every variable that has some; the inverse of ``encoded``.

    Args:
      tensors: the variables, by name.

    Raises:
      WeightsError: they are not changes of these variables.
    """
    if gaps.size and gaps[-1] == _MORE:
        raise WeightsError("the last gap has no end")
    places = np.cumsum(gaps, dtype=np.int64)[gaps != _MORE]
    if (np.diff(places) <= 0).any():
        raise WeightsError("an element changes twice")
    found: dict[str, Changes] = {}
    first = begin = used = 0
    for name in sorted(tensors):
        spec = tensors[name]
        width = np.dtype(spec.dtype).itemsize
        end = int(np.searchsorted(places, first + spec.nbytes // width))
        if end > begin:
            raw = values[used : (used := used + (end - begin) * width)]
            if len(raw) < (end - begin) * width:
                raise WeightsError("there are fewer values than gaps")
            bits = np.ascontiguousarray(raw).view(np.dtype(_BITS[width]).newbyteorder("<"))
            found[name] = Changes(places[begin:end] - first, bits.astype(_BITS[width]))
        first, begin = first + spec.nbytes // width, end
    if begin < len(places):
        raise WeightsError(f"element {places[-1]:,} changes, and there are {first:,}")
    if used < values.size:
        raise WeightsError("there are more values than gaps")
    return found


def read(part: VersionPart, store: WeightStore) -> dict[str, Changes]:
    """The changes that a part holds, from its path.

    Raises:
      WeightsError: they are damaged, or not changes of the part's variables.
      Others: those of ``WeightStore.load``.
    """
    assert part.delta is not None, "a part of the format delta has a size"
    sizes = {GAPS: part.delta.gaps, VALUES: part.delta.values}
    elements = sum(_elements(spec) for spec in part.tensors.values())
    # Every variable may have changed entirely; before that many bytes are allocated.
    most = {GAPS: elements + elements // _MORE, VALUES: nbytes(part)}
    for name, size in sizes.items():
        if size > most[name]:
            raise WeightsError(f"{part.path} has {size:,} bytes of {name}, of {most[name]:,}")
    arrays = store.load(part.path, {n: np.empty(size, np.uint8) for n, size in sizes.items()})
    try:
        return decoded(np.asarray(arrays[GAPS]), np.asarray(arrays[VALUES]), part.tensors)
    except WeightsError as error:
        raise WeightsError(f"{part.path} has no changes of part {part.name}: {error}") from error


def nbytes(part: VersionPart) -> int:
    """The bytes of all variables of a part, which are more than those of its changes."""
    return sum(spec.nbytes for spec in part.tensors.values())


def _elements(spec: TensorSpec) -> int:
    return spec.nbytes // np.dtype(spec.dtype).itemsize


def combined(steps: Sequence[Mapping[str, Changes]]) -> dict[str, Changes]:
    """Changes after changes as one: each element gets its last value."""
    if len(steps) == 1:
        return dict(steps[0])
    found: dict[str, Changes] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        those = [step[name] for step in reversed(steps) if name in step]
        places, chosen = np.unique(np.concatenate([c.places for c in those]), return_index=True)
        found[name] = Changes(places, np.concatenate([c.bits for c in those])[chosen])
    return found


def applied(array: Any, changes: Changes) -> Any:
    """A new array with some elements changed; the old one stays as it is.

    Args:
      array: numpy or JAX array of any sharding, or an object whose ``with_changes`` returns it
        changed (the arguments are those of ``device_changes.with_changes``).
    """
    if isinstance(array, np.ndarray):
        copied = np.array(array, order="C")
        copied.reshape(-1).view(changes.bits.dtype)[changes.places] = changes.bits
        return copied
    shape = tuple(array.shape) or (1,)
    indices = tuple(i.astype(np.int32) for i in np.unravel_index(changes.places, shape))
    if (own := getattr(array, "with_changes", None)) is not None:
        return own(indices, changes.bits)
    from rlax_plugin.weights.device_changes import with_changes

    return with_changes(array, indices, changes.bits)
