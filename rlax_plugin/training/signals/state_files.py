"""The state of signals in a run's directory: ``signals/<step>/<signal>/``, put file by file."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.packing import pack, unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.ports.protocols import Arrays

_FOLDER = "signals"


class SignalState:
    """The files of one signal that belong to the trainer's checkpoint of one step.

    Args:
      files: the run's directory.
    """

    def __init__(self, files: RunFiles, step: int, signal: str):
        self._files, self._step, self._signal = files, step, signal

    def put(self, arrays: Arrays, name: str = "state") -> None:
        """Writes arrays as one file with a checksum, in place of an earlier one.

        Args:
          name: of letters, digits, hyphens and underscores, so that the file is the signal's own.

        Raises:
          ValueError: another name, or an array that holds Python objects.
          RlaxError: the file cannot be written.
        """
        if not re.fullmatch(r"[\w-]+", name):
            raise ValueError(
                f"a state of signal {self._signal!r} is named {name!r}: names consist of letters, "
                "digits, - and _"
            )
        self._files.put(self._path(f"{name}.npz"), pack(arrays))

    def get(self, name: str = "state") -> dict[str, np.ndarray]:
        """Returns the arrays of a file.

        Raises:
          TrainingError: it is missing or damaged.
          RlaxError: it cannot be read.
        """
        where = self.location(f"{name}.npz")
        try:
            return unpack(self._files.get(self._path(f"{name}.npz")))
        except FileNotFoundError:
            raise TrainingError(
                f"the trainer resumed at step {self._step}, but {where} is missing: without the "
                f"state of signal {self._signal!r} the run would continue with other batches. "
                "Start a new run_name, or remove the checkpoints of the steps that have no such "
                "file"
            ) from None
        except ValueError as error:
            raise TrainingError(
                f"{where} is damaged: {error}. Bring it back from a copy of the run directory, or "
                f"move the checkpoint of step {self._step} out of checkpoints/: the run then "
                "continues from the one before it"
            ) from error

    def location(self, name: str) -> str:
        """Returns the path or URL of a file, for a state that another library writes."""
        return self._files.location(self._path(name))

    def _path(self, name: str) -> str:
        return f"{_folder(self._step)}/{self._signal}/{name}"


def prune(files: RunFiles, checkpoints: Collection[int], keep: Collection[int]) -> None:
    """Removes the states of steps whose checkpoints are gone.

    A state without a checkpoint may be one whose checkpoint is still being written. So those after
    the newest checkpoint stay.

    Args:
      checkpoints: steps of which the trainer has a checkpoint.
      keep: further steps whose state stays.
    """
    newest = max(checkpoints, default=0)
    for name in files.names(_FOLDER):
        if not name.isdecimal():
            continue
        step = int(name)
        if step < newest and step not in checkpoints and step not in keep:
            files.delete(_folder(step))


def _folder(step: int) -> str:
    return f"{_FOLDER}/{step:08d}"
