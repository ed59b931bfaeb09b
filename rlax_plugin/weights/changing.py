"""Arrays of which some elements get other bits, on the host and on devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlax_plugin.weights.deltas import Changes
from rlax_plugin.weights.fingerprint import NARROW

if TYPE_CHECKING:
    import jax

_SIZES = 1 << 20, 1 << 16, 1 << 12
"""Numbers of elements that one program changes. The last program of an array changes fewer."""
_ALIGNED = 64  # bytes; JAX uses arrays that lie like this without copying them


class Changing(Protocol):
    """A copy of an array while it is being changed; the array itself stays as it is."""

    def change(self, changes: Changes) -> None:
        """Changes some elements."""
        ...

    def changed(self) -> Any:
        """Returns the changed array, of the same kind as the original; called once, at the end."""
        ...


def changing(array: Any, axis: int = 0, own: bool = False) -> Changing:
    """Begins to change an array.

    Args:
      array: numpy or JAX array of any sharding and of any boolean, integer or floating dtype of at
        most 32 bits (on the host also of 64 bits), or an object with a method ``changing``.
      axis: axis of the published array that is the first one of this array; the places of changes
        are those of the published array.
      own: True if the caller drops the array, whose memory may then be used on a device.
    """
    if isinstance(array, np.ndarray):
        return _HostCopy(np.array(array, order="C"), axis, lambda host: host)
    if (begin := getattr(array, "changing", None)) is not None:
        return begin()
    devices = array.sharding.device_set
    if len(devices) > 1 or next(iter(devices)).platform != "cpu":
        return _DeviceCopy(array, axis, own)
    finish = functools.partial(_on_device, array.sharding)
    return _HostCopy(_aligned_copy(np.asarray(array)), axis, finish)


class _HostCopy:
    """A copy on the host. XLA takes ten times as long to change elements on a CPU."""

    def __init__(self, host: np.ndarray, axis: int, finish: Callable[[np.ndarray], Any]):
        self._host, self._finish = host, finish
        self._published = np.moveaxis(host, 0, axis) if axis else host

    def change(self, changes: Changes) -> None:
        bits = self._published.view(changes.bits.dtype)
        if bits.flags.c_contiguous:
            bits.reshape(-1)[changes.places] = changes.bits
        else:
            bits[np.unravel_index(changes.places, bits.shape)] = changes.bits

    def changed(self) -> Any:
        return self._finish(self._host)


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _on_device(sharding: jax.sharding.Sharding, host: np.ndarray) -> jax.Array:
    import jax

    return jax.device_put(host, sharding)


class _DeviceCopy:
    """A copy on devices, with the sharding of the original; each change launches computations."""

    def __init__(self, array: jax.Array, axis: int, own: bool):
        self._array, self._axis, self._own = array, axis, own

    def change(self, changes: Changes) -> None:
        shape = tuple(self._array.shape) or (1,)
        published = [*shape[1 : self._axis + 1], shape[0], *shape[self._axis + 1 :]]
        indices = [i.astype(np.int32) for i in np.unravel_index(changes.places, published)]
        indices.insert(0, indices.pop(self._axis))
        start, count = 0, len(changes.bits)
        while start < count:
            size = next((size for size in _SIZES if size <= count - start), _SIZES[-1])
            part = slice(start, start + size)
            places = _filled([axis[part] for axis in indices], size, shape[0])
            change = _changer(self._array.sharding, self._own)
            self._array = change(self._array, places, np.resize(changes.bits[part], size))
            start, self._own = start + size, True

    def changed(self) -> jax.Array:
        return self._array


def _filled(indices: list[np.ndarray], size: int, end: int) -> tuple[np.ndarray, ...]:
    """Indices with more of them at the end, which lie behind the end of the first axis.

    They are left out when elements are set. No two of them are the same.
    """
    more = np.arange(end, end + size - len(indices[0]), dtype=np.int32)
    first, *others = indices
    return np.concatenate([first, more]), *(
        np.concatenate([axis, np.zeros_like(more)]) for axis in others
    )


@functools.cache
def _changer(sharding: jax.sharding.Sharding, own: bool) -> Callable[..., jax.Array]:
    import jax

    return jax.jit(_with_changes, out_shardings=sharding, donate_argnums=(0,) if own else ())


def _with_changes(array: jax.Array, indices: tuple[jax.Array, ...], bits: jax.Array) -> jax.Array:
    import jax.numpy as jnp
    from jax import lax

    # As integers: floating-point arithmetic may change the payload of NaN.
    whole = array.reshape(1) if array.ndim == 0 else array
    converts = array.dtype == np.bool_ or array.dtype.name in NARROW
    words = whole.astype(jnp.int8) if converts else whole
    words = lax.bitcast_convert_type(words, bits.dtype)
    words = words.at[indices].set(bits, mode="drop", unique_indices=True)
    found = lax.bitcast_convert_type(words, jnp.int8 if converts else array.dtype)
    return found.astype(array.dtype).reshape(array.shape)
