"""Weight store ``npz``: one checksummed numpy file per version, on a disk or an object store."""

from __future__ import annotations

import posixpath
from typing import Any

import ml_dtypes
import numpy as np

from rlax_plugin.base.errors import (
    RlaxError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)
from rlax_plugin.base.files.packing import pack, unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import NoOptions
from rlax_plugin.ports.protocols import Arrays, WeightStore

FILE = "weights.npz"
_BFLOAT16 = ":bfloat16"  # ends the names of arrays whose dtype numpy's files do not know


class NpzConfig(NoOptions):
    """Stores each weight version as one .npz file with checksums."""


class NpzStore(WeightStore):
    """Writes ``<path>/weights.npz`` in one put, which makes a version visible."""

    def save(self, path: str, arrays: Arrays) -> None:
        files = RunFiles(path)
        try:
            if files.exists(FILE):
                raise WeightsError(f"cannot write {path}: it exists")
            files.put(FILE, pack(_plain(arrays)))
        except WeightsError:
            raise
        except ValueError as error:
            raise WeightsError(f"cannot write {path}: {error}") from error
        except RlaxError as error:
            raise WeightsUnwritableError(f"cannot write {path}: {error}") from error

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        files = RunFiles(path)
        try:
            arrays = _whole(unpack(files.get(FILE)))
        except FileNotFoundError as error:
            raise WeightsUnreadableError(f"{files.location(FILE)} does not exist") from error
        except ValueError as error:
            raise WeightsError(f"{files.location(FILE)} is damaged: {error}") from error
        except RlaxError as error:
            raise WeightsUnreadableError(str(error)) from error
        found = {name: (a.shape, a.dtype) for name, a in arrays.items()}
        expected = {name: (tuple(a.shape), a.dtype) for name, a in like.items()}
        if found != expected:
            raise WeightsError(f"{files.location(FILE)} holds {found}, expected {expected}")
        return arrays

    def delete(self, path: str) -> None:
        parent, name = posixpath.split(path.rstrip("/"))
        try:
            RunFiles(parent).delete(name)
        except RlaxError as error:
            raise WeightsError(str(error)) from error


def _plain(arrays: Arrays) -> dict[str, np.ndarray]:
    found = {}
    for name, array in arrays.items():
        if array.dtype == ml_dtypes.bfloat16:
            name, array = f"{name}{_BFLOAT16}", np.asarray(array).view(np.uint16)
        found[name] = array
    return found


def _whole(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removesuffix(_BFLOAT16): array.view(ml_dtypes.bfloat16)
        if name.endswith(_BFLOAT16)
        else array
        for name, array in arrays.items()
    }
