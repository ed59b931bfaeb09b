"""Writes the tensors of a Hugging Face directory one by one, into files of a bounded size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from rlax_plugin.base.errors import WeightsUnwritableError

_INDEX = "model.safetensors.index.json"


def write_tensors(
    directory: Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, np.dtype],
    most_bytes: int,
    stem: str = "model",
) -> list[str]:
    """Writes ``model.safetensors``, or several files and their index.

    Only the tensors of one file are in memory at a time.

    Args:
      directory: the target.
      tensors: (name, array), exactly those of ``shapes`` and in their order.
      shapes: name -> shape of every tensor.
      dtypes: name -> dtype of every tensor.
      most_bytes: largest size of a file; a larger tensor gets a file of its own.
      stem: name of the files without ``.safetensors``.

    Returns:
      Names of the files.

    Raises:
      WeightsUnwritableError, OSError: the disk is full, or cannot be written.
    """
    sizes = {name: math.prod(shapes[name]) * dtypes[name].itemsize for name in shapes}
    files = _files(sizes, most_bytes)
    width = max(5, len(str(len(files))))
    names = [
        f"{stem}.safetensors"
        if len(files) == 1
        else f"{stem}-{number:0{width}d}-of-{len(files):0{width}d}.safetensors"
        for number in range(1, len(files) + 1)
    ]
    stream = iter(tensors)
    for file, expected in zip(names, files, strict=True):
        held: dict[str, np.ndarray] = {}
        for wanted in expected:
            name, tensor = next(stream)
            assert name == wanted and tensor.dtype == dtypes[name], (name, wanted, tensor.dtype)
            held[name] = tensor
        try:
            save_file(held, directory / file, {"format": "pt"})
        except SafetensorError as error:  # which is no OSError, even where the disk is full
            raise WeightsUnwritableError(f"{directory / file}: {error}") from error
        (directory / file).chmod(0o644)  # the library makes it the user's own only
    if len(names) > 1:
        placed = zip(names, files, strict=True)
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, those in placed for name in sorted(those)},
        }
        (directory / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return names


def _files(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """Returns the names of the tensors in each file."""
    files: list[list[str]] = []
    left = -1
    for name, size in sizes.items():
        if size > left:
            files.append([])
            left = most_bytes
        files[-1].append(name)
        left -= size
    return files
