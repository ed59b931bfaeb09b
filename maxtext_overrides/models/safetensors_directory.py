"""Reads a Hugging Face directory with safetensors, in one file or in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes as ml_dtypes  # names bfloat16 to numpy, which safetensors relies on
import numpy as np
from safetensors import SafetensorError, safe_open

from maxtext_overrides.models.huggingface_config import read as read_json
from maxtext_overrides.models.tensors import shown
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTERS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # PEFT's
_DTYPES = ("F64", "F32", "F16", "BF16")


class SafetensorsDirectory:
    """The tensors of a directory; each is read when it is needed.

    Args:
      directory: has ``model.safetensors``, which is then read alone, as transformers does, or
        ``model.safetensors.index.json`` and its files.
      adapters: True reads ``adapter_model.safetensors`` instead.

    Raises:
      ConfigError: files are missing, truncated or contradict the index, or a tensor's dtype is not
        a floating-point one.
    """

    def __init__(self, directory: Path, adapters: bool = False):
        self._directory = directory
        if (directory / ADAPTER_CONFIG).exists() and not adapters:
            reason = (
                f"has {ADAPTER_CONFIG}: convert its base, and start from the adapters with "
                "lora.lora_restore_path; or merge them into the weights, and remove it"
            )
            raise ConfigError("SOURCE", str(directory), reason)
        one, index = directory / (ADAPTERS if adapters else _ONE), directory / _INDEX
        if index.is_file() and not one.exists() and not adapters:
            self._file_of = _files_of_index(index)
        else:
            with _opened(_only_file(one)) as file:
                self._file_of = dict.fromkeys(file.keys(), one.name)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.doubles: list[str] = []
        tensors: dict[str, set[str]] = {}
        for tensor, file in self._file_of.items():
            tensors.setdefault(file, set()).add(tensor)
        for file in sorted(tensors):
            self._shapes |= self._examine(file, tensors[file])

    @property
    def where(self) -> str:
        return str(self._directory)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        # Opened each time: pages of the file that were read would count as this process's memory.
        path = self._directory / self._file_of[name]
        with _opened(path) as file:
            tensor = file.get_tensor(name)
        if tensor.shape != self._shapes[name]:
            reason = f"the tensor {name} has another shape than before: the file has changed"
            raise ConfigError("SOURCE", str(path), reason)
        return tensor

    def _examine(self, name: str, wanted: set[str]) -> dict[str, tuple[int, ...]]:
        """Returns name -> shape of the tensors that are to be read from a file."""
        path, shapes = self._directory / name, {}
        with _opened(path) as file:
            held = set(file.keys())
            if missing := sorted(wanted - held):
                reason = f"lacks the tensor {shown(missing[0])}, which {_INDEX} says it has"
                raise ConfigError("SOURCE", str(path), reason)
            if unknown := sorted(held - wanted):
                reason = f"has the tensor {shown(unknown[0])}, which {_INDEX} does not say"
                raise ConfigError("SOURCE", str(path), reason)
            for tensor in wanted:
                part = file.get_slice(tensor)
                if part.get_dtype() not in _DTYPES:
                    reason = (
                        f"the tensor {shown(tensor)} has the dtype {part.get_dtype()}; "
                        f"supported: {', '.join(_DTYPES)}"
                    )
                    raise ConfigError("SOURCE", str(path), reason)
                shapes[tensor] = tuple(part.get_shape())
                if part.get_dtype() == "F64":
                    self.doubles.append(tensor)
        return shapes


def _only_file(path: Path) -> Path:
    if path.exists():
        return path
    reason = f"has neither {_ONE} nor {_INDEX}" if path.name == _ONE else f"has no {path.name}"
    if any(path.parent.glob("*.bin")):
        reason += "; .bin files are not read, because reading them can run code: save the model "
        reason += "with safe_serialization=True in transformers"
    raise ConfigError("SOURCE", str(path.parent), reason)


def _files_of_index(path: Path) -> dict[str, str]:
    """Returns tensor -> file, as stated by an index."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ConfigError("SOURCE", str(path), "must have an object weight_map: tensor -> file")
    for tensor, file in found.items():
        # Neither a file system nor a terminal has a zero byte or half a character in a name.
        named = isinstance(file, str) and file != "" and file.isprintable()
        if not named or Path(file).name != file:
            reason = (
                f"the file of {shown(tensor)} must be the name of one beside it, not {file!r:.100}"
            )
            raise ConfigError("SOURCE", str(path), reason)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens a file of safetensors, and turns errors into ConfigErrors that name it."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise ConfigError("SOURCE", str(path), "is no file")
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError("SOURCE", str(path), f"is missing, but {_INDEX} names it") from None
    except (SafetensorError, OSError) as error:
        reason = f"is truncated or no file of safetensors: {one_line(str(error))}"
        raise ConfigError("SOURCE", str(path), reason) from None
