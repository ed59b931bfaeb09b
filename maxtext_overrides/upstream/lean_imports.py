"""Imports MaxText's trainer without two libraries that this project never uses.

``maxtext.trainers.pre_train.train`` imports TensorFlow, to hide GPUs from TFDS, and
``google.cloud.aiplatform``, for Vertex AI TensorBoard: half of its 33 s of CPU. Both imports have a
fallback upstream (``_TF_AVAILABLE``, ``gcloud_stub.vertex_tensorboard_modules``), which is taken
when the import fails. A library that is already loaded is left alone.

Tested with MaxText 0.2.5. Delete when MaxText imports them on first use.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Unavailable(MetaPathFinder, Loader):
    """Makes an import of the given modules fail, only in the thread that created the object."""

    def __init__(self, names: frozenset[str]):
        self._names, self._thread = names, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names and threading.get_ident() == self._thread:
            return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ModuleNotFoundError(f"{spec.name} is not imported here", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        raise ModuleNotFoundError(f"{module.__name__} is not imported here")


@contextmanager
def unavailable(*names: str) -> Iterator[None]:
    """Makes importing any of ``names`` raise ``ModuleNotFoundError`` unless it is loaded."""
    finder = _Unavailable(frozenset(names) - sys.modules.keys())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_trainer(vertex_tensorboard: bool = False) -> Any:
    """Returns the module ``maxtext.trainers.pre_train.train``.

    Args:
      vertex_tensorboard: True if the run uploads to Vertex AI TensorBoard.
    """
    names = ["tensorflow"] if vertex_tensorboard else ["tensorflow", "google.cloud.aiplatform"]
    with unavailable(*names):
        # What ``setup_train_loop`` imports on its own.
        importlib.import_module("maxtext.input_pipeline.input_pipeline_interface")
        return importlib.import_module("maxtext.trainers.pre_train.train")
