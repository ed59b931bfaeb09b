"""A Hugging Face directory with safetensors, in one file or in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes as ml_dtypes  # names bfloat16 to numpy, which safetensors relies on
import numpy as np
from safetensors import SafetensorError, safe_open

from maxtext_overrides.models.huggingface_config import read as read_json
from rlax_plugin.errors import ConfigError

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")


class SafetensorsDirectory:
    """The tensors of a directory; each is read when it is asked for.

    Args:
      directory: with ``model.safetensors``, or ``model.safetensors.index.json`` and its files.

    Raises:
      ConfigError: files are missing, truncated or contradict the index, or a tensor's dtype is no
        floating-point one.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        index = directory / _INDEX
        if index.exists():
            self._file_of = _files_of_index(index)
        else:
            self._file_of = dict.fromkeys(_names(_only_file(directory)), _ONE)
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(set(self._file_of.values())):
            self._shapes |= self._examine(file)

    @property
    def where(self) -> str:
        return str(self._directory)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        # Opened each time: pages of the file that were read would count as this process's memory.
        with _opened(self._directory / self._file_of[name]) as file:
            return file.get_tensor(name)

    def _examine(self, name: str) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the tensors that are to be read from a file."""
        path, shapes = self._directory / name, {}
        wanted = {tensor for tensor, file in self._file_of.items() if file == name}
        with _opened(path) as file:
            held = set(file.keys())
            if missing := sorted(wanted - held):
                reason = f"lacks the tensor {missing[0]}, which {_INDEX} says it has"
                raise ConfigError("SOURCE", str(path), reason)
            if unknown := sorted(held - wanted):
                reason = f"has the tensor {unknown[0]}, which {_INDEX} does not say"
                raise ConfigError("SOURCE", str(path), reason)
            for tensor in wanted:
                part = file.get_slice(tensor)
                if part.get_dtype() not in _DTYPES:
                    reason = (
                        f"the tensor {tensor} has the dtype {part.get_dtype()}; "
                        f"supported: {', '.join(_DTYPES)}"
                    )
                    raise ConfigError("SOURCE", str(path), reason)
                shapes[tensor] = tuple(part.get_shape())
        return shapes


def _only_file(directory: Path) -> Path:
    path = directory / _ONE
    if path.exists():
        return path
    reason = f"has neither {_ONE} nor {_INDEX}"
    if any(directory.glob("*.bin")):
        reason += "; .bin files are not read, because reading them can run code: save the model "
        reason += "with safe_serialization=True in transformers"
    raise ConfigError("SOURCE", str(directory), reason)


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _files_of_index(path: Path) -> dict[str, str]:
    """Tensor -> file, as an index says."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ConfigError("SOURCE", str(path), "must have an object weight_map: tensor -> file")
    for tensor, file in found.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            reason = f"the file of {tensor} must be the name of one beside it, not {file!r}"
            raise ConfigError("SOURCE", str(path), reason)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of safetensors, with errors that name it."""
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError("SOURCE", str(path), f"is missing, but {_INDEX} names it") from None
    except (SafetensorError, OSError) as error:
        reason = f"is truncated or no file of safetensors: {error}"
        raise ConfigError("SOURCE", str(path), reason) from None
