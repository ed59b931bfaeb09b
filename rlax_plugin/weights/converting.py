"""Writes versions in the names of transformers, for engines that are not the trainer's library's.

The publisher converts a version once, after it has announced it, and only while a worker reads the
format. The first such worker may register late: then the newest version is read from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.types import TensorSpec, WeightVersion
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.ports.training import Conversion
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.verification import stored_arrays

PART = "huggingface"
"""Name of the part that is written here."""


class Converter:
    """Writes the converted part of one version after the other; on the publisher's thread.

    Args:
      make: see ``Trainer.converter``; called before the first version is converted.
      store: reads versions whose arrays are gone.
      refuse: called on the event loop if the model cannot be converted, with the reason.

    Attributes:
      wanted: True while a worker of the run reads the format; set on the event loop.
      refuse: see above.
    """

    def __init__(
        self, make: Callable[[], Conversion], store: WeightStore, refuse: Callable[[str], None]
    ):
        self._make, self._store, self.refuse = make, store, refuse
        self._conversion: Conversion | None = None
        self.wanted = False

    def write(
        self, version: WeightVersion, arrays: Arrays | None, path: str
    ) -> Mapping[str, TensorSpec]:
        """Writes a version into a new directory.

        Args:
          arrays: its variables; None: they are read from its files.
          path: the directory.

        Returns:
          Tensor name -> what was written.

        Raises:
          ConfigError: the model cannot be converted.
          WeightsError: the files cannot be read, or are damaged.
          OSError: the directory cannot be written.
        """
        conversion = self._conversion = self._conversion or self._make()
        tensors: dict[str, TensorSpec] = {}

        def wrote(name: str, tensor: np.ndarray) -> None:
            fingerprint: Any = fingerprint_numpy({name: tensor})[name]
            tensors[name] = TensorSpec(tensor.shape, tensor.dtype.name, int(fingerprint))

        found = stored_arrays(version, self._store) if arrays is None else arrays
        Path(path).mkdir(parents=True)
        conversion(found, Path(path), wrote)
        return tensors
