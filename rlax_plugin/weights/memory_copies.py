"""Versions in the memory of the trainer's machine, which other processes there can read.

A part of a version is copied into a file that exists in memory only (``memfd_create``), whose
content is sealed. A reader opens it through the descriptor of the process that has it, and maps it:
all readers of a machine share the same memory, and on CPUs JAX's arrays use it without a copy. The
system frees it when no process has it any more, so a killed one leaves nothing behind. The bytes
have no checksum: they passed no disk and no network, and the fingerprints cover all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlax_plugin.base.errors import WeightsUnreadableError
from rlax_plugin.base.types import MemoryCopy, TensorSpec
from rlax_plugin.ports.protocols import Arrays

_ALIGNED = 64  # bytes; JAX uses arrays that lie like this without copying them
_SEALS = "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE"
_MOST_WRITTEN = 1 << 30  # bytes of one system call, which takes no more than 2 GiB


def this_machine() -> str:
    """Identifies the machine, the namespace of its processes, and the user.

    Two processes with the same one can open each other's descriptors. "": memory cannot be shared
    here.
    """
    if not hasattr(os, "memfd_create"):
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}:{os.geteuid()}"
    except OSError:
        return ""


THIS_PROCESS = secrets.token_hex(16)
"""Names this process to its own parameter server: a reader in it gets arrays by reference.

The other hosts of a trainer are told it; by this name, a reader in one of them gets its arrays.
"""


class LetGoError(WeightsUnreadableError):
    """The arrays were taken before, or replaced by those of the next version, which follows."""


class OwnArrays:
    """The arrays of the newest version, for a reader in the process that has them."""

    _lock = threading.Lock()  # the publisher's thread gives while the engine's takes
    newest: tuple[bytes, Arrays] = b"", {}

    @classmethod
    def give(cls, arrays: Arrays, version: int, trainer: str = THIS_PROCESS) -> MemoryCopy:
        """Replaces the arrays of the version before; they stay as they are on their devices.

        Args:
          version: their number.
          trainer: ``THIS_PROCESS`` of host 0, which announces the version for all hosts.
        """
        token = hashlib.blake2b(f"{trainer}:{version}".encode(), digest_size=16).digest()
        with cls._lock:
            cls.newest = token, arrays
        return MemoryCopy(os.getpid(), -1, token)

    @classmethod
    def take(cls, token: bytes) -> Arrays:
        """Returns the arrays that a version names, and lets go of them: they have one reader.

        Raises:
          LetGoError: they were taken before, or are of another version.
        """
        with cls._lock:
            newest, arrays = cls.newest
            if newest != token:
                raise LetGoError("they are not the trainer's newest weights any more")
            if not arrays:
                raise LetGoError("the trainer's arrays were taken before")
            cls.newest = token, {}
        return arrays

    @classmethod
    def forget(cls) -> None:
        """Lets go of the arrays."""
        with cls._lock:
            cls.newest = b"", {}


class MemoryCopies:
    """The copy of the newest version, held by the process that wrote it.

    Args:
      most_bytes: larger versions are not copied.
    """

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._newest: int | None = None

    def add(self, arrays: Arrays) -> MemoryCopy | None:
        """Copies arrays, in place of those before; copies from devices.

        A process that has begun to read the copy before can read it to its end.

        Args:
          arrays: name -> array of this process's host or devices.

        Returns:
          The way to the copy; None: the arrays are too large or partly on another host, or the
          system offers no such memory.
        """
        self.close()
        size = sum(int(array.nbytes) for array in arrays.values())
        if not this_machine() or size > self._most_bytes:
            return None
        if not all(getattr(array, "is_fully_addressable", True) for array in arrays.values()):
            return None
        # Without flags: mmap by path needs no execution, and any size is a size of whole pages.
        with suppress(OSError):  # no memory, or no descriptor: there is the file on the disk
            self._newest = os.memfd_create("rlax-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            return _write(self._newest, arrays)
        self.close()
        return None

    def close(self) -> None:
        descriptor, self._newest = self._newest, None
        if descriptor is not None:
            os.close(descriptor)


def _write(descriptor: int, arrays: Mapping[str, Any]) -> MemoryCopy:
    token = secrets.token_bytes(16)
    os.pwrite(descriptor, token, 0)
    hosted = {name: np.asarray(array) for name, array in arrays.items()}
    places = list(_places({name: array.nbytes for name, array in hosted.items()}))
    for name, start, _ in places:
        raw = memoryview(np.ascontiguousarray(hosted[name]).reshape(-1).view(np.uint8))
        while raw:
            written = os.pwrite(descriptor, raw[:_MOST_WRITTEN], start)
            raw, start = raw[written:], start + written
    os.ftruncate(descriptor, _size(places))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals() | fcntl.F_SEAL_SEAL)
    return MemoryCopy(os.getpid(), descriptor, token)


def _places(sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yields name, start and end of each array; the order is that of the names."""
    end = _ALIGNED
    for name in sorted(sizes):
        start = -(-end // _ALIGNED) * _ALIGNED
        end = start + sizes[name]
        yield name, start, end


def _size(places: Sequence[tuple[str, int, int]]) -> int:
    return places[-1][2] if places else _ALIGNED


def _seals() -> int:
    found = 0
    for name in _SEALS:
        found |= getattr(fcntl, name)
    return found


def read(copy: MemoryCopy, tensors: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """The arrays of a copy; read-only, and in the same memory as those of other readers.

    Args:
      tensors: the arrays that it must hold.

    Raises:
      WeightsUnreadableError: the process has given it up, or is not on this machine, or this is no
        such copy; see ``OwnArrays.take`` too.
    """
    if copy.by_reference:
        return dict(OwnArrays.take(copy.token))
    path = f"/proc/{copy.pid}/fd/{copy.descriptor}"
    places = list(_places({name: spec.nbytes for name, spec in tensors.items()}))
    size = _size(places)
    try:
        # Whatever a message calls a copy: opening it must neither wait nor do anything.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise WeightsUnreadableError(f"{path} is no copy of weights: it is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _seals() != _seals():
                raise WeightsUnreadableError(f"{path} is no copy of weights: it can be changed")
            if (found := os.fstat(descriptor).st_size) != size:
                reason = f"it has {found} bytes, and the version {size}"
                raise WeightsUnreadableError(f"{path} is no copy of this version: {reason}")
            memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WeightsUnreadableError(f"{path} cannot be read: {error.strerror}") from error
    if memory[: len(copy.token)] != copy.token:
        raise WeightsUnreadableError(f"{path} is the copy of another version")
    return {name: _array(memory, start, tensors[name]) for name, start, _ in places}


def _array(memory: mmap.mmap, start: int, spec: TensorSpec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if not (count := spec.nbytes // dtype.itemsize):
        return np.zeros(spec.shape, dtype)
    return np.frombuffer(memory, dtype, count, start).reshape(spec.shape)


def on_devices(arrays: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Moves arrays to where others are: see ``WeightStore.load``.

    Args:
      like: name -> array or struct; one without a sharding stays on the host.
    """
    wanted = {n: s for n in arrays if (s := getattr(like[n], "sharding", None)) is not None}
    if not wanted:
        return dict(arrays)
    import jax

    placed = jax.device_put([arrays[name] for name in wanted], list(wanted.values()))
    return {**arrays, **dict(zip(wanted, placed, strict=True))}
