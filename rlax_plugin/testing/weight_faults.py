"""Faults of weights between a store and an engine, for tests of the checks that find them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.records.files import RunFiles

WeightFault = Literal[
    "",
    "flipped_bit",
    "truncated_file",
    "renamed_parameter",
    "swapped_tensors",
    "stale_version",
    "wrong_use",
    "wrong_decoding",
]


class FaultyStore(WeightStore):
    """Reads through another store, and damages the arrays or bytes that are read.

    Args:
      store: keeps each version as files directly in its directory, such as ``npz`` does.
      fault: ``flipped_bit`` and ``truncated_file`` damage a copy of the bytes, for the store's own
        checksums to find; the others change what the store returns.
      held: the weights of an earlier version, for ``stale_version``.
    """

    def __init__(self, store: WeightStore, fault: WeightFault, held: Arrays):
        self._store, self._fault, self._held = store, fault, held

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        if self._fault in ("flipped_bit", "truncated_file"):
            with tempfile.TemporaryDirectory(prefix="rlax-fault-") as copy:
                self._damaged_copy(path, Path(copy))
                return self._store.load(copy, like)
        arrays = self._store.load(path, like)
        if self._fault == "renamed_parameter":
            name = min(arrays)
            arrays[f"{name}_renamed"] = arrays.pop(name)
        if self._fault == "swapped_tensors":
            one, other = _equal_shapes(arrays)
            arrays[one], arrays[other] = arrays[other], arrays[one]
        if self._fault == "stale_version":
            arrays = dict(self._held)
        return arrays

    def save(self, path: str, arrays: Arrays) -> None:
        self._store.save(path, arrays)

    def delete(self, path: str) -> None:
        self._store.delete(path)

    def _damaged_copy(self, path: str, copy: Path) -> None:
        files = RunFiles(path)
        for name in files.names(""):
            data = bytearray(files.get(name))
            if self._fault == "flipped_bit":
                data[len(data) // 2] ^= 1
            else:
                del data[len(data) // 2 :]
            (copy / name).write_bytes(data)


def wrongly_used(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights that ``wrong_use`` and ``wrong_decoding`` compute with: a transposed table."""
    return {**weights, "table": np.ascontiguousarray(weights["table"].T)}


def _equal_shapes(arrays: Arrays) -> tuple[str, str]:
    names = sorted(arrays)
    return next(
        (one, other)
        for index, one in enumerate(names)
        for other in names[index + 1 :]
        if arrays[one].shape == arrays[other].shape
    )
