"""Writes a MaxText checkpoint of parameters, one variable at a time.

Orbax writes all arrays of a tree at once, and keeps a copy of each meanwhile. Here it is given
arrays that are made when they are written, so that only one variable is in memory at a time.

On disk the weights are below ``params/params``, as MaxText writes them itself: the item's key, and
Flax's collection inside it. ``load_parameters_path`` is ``DIRECTORY/0/items``.

Tested with orbax-checkpoint 0.12.8: ``NumpyHandler._open_and_write`` writes one array. Delete when
Orbax takes arrays that are made on demand.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax import checkpoint as ocp
from orbax.checkpoint import type_handlers

from maxtext_overrides.models.rules import Variable

ITEMS = "0/items"  # below the directory
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Pending:
    """An array that is made when it is written."""

    variable: Variable
    dtype: np.dtype
    of: Callable[[Variable, np.dtype], np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.variable.shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def make(self) -> np.ndarray:
        return self.of(self.variable, self.dtype)


class _InTurn(type_handlers.NumpyHandler):
    """Writes pending arrays one after the other.

    Args:
      written: called with each array once it is on disk.
    """

    def __init__(self, written: Callable[[_Pending], None]):
        super().__init__(deepcopy_host_arrays=False)
        self._written, self._turn, self._failed = written, asyncio.Lock(), False

    async def _open_and_write(self, value: Any, *args: Any) -> None:
        async with self._turn:
            if self._failed:  # Orbax closes the event loop: no write may be in progress then
                return
            self._failed = True
            await super()._open_and_write(value.make(), *args)
            self._failed = False
            self._written(value)


def write(
    directory: Path,
    variables: Sequence[tuple[Variable, np.dtype]],
    made: Callable[[Variable, np.dtype], np.ndarray],
    scanned: bool,
    progress: Callable[[int, int], None],
) -> None:
    """Writes a checkpoint.

    Args:
      directory: ``ITEMS`` is written below it.
      variables: all variables of the model, each with the dtype in which it is written.
      made: returns the value of a variable in a dtype.
      scanned: ``scan_layers``, which MaxText compares when it loads.
      progress: called with (bytes written, total bytes) before the first array and after each.

    Raises:
      Exception: ``read`` raised it.
      OSError: the disk failed.
    """
    pending = [_Pending(variable, dtype, made) for variable, dtype in variables]
    total, done = sum(one.nbytes for one in pending), 0

    def written(one: _Pending) -> None:
        nonlocal done
        done += one.nbytes
        progress(done, total)

    progress(0, total)
    tree: dict[str, Any] = {}
    for one in pending:
        *folders, last = one.variable.name.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = one
    options = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), tree)
    registry = type_handlers.create_type_handler_registry((_Pending, _InTurn(written)))
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=True, use_zarr3=True, use_compression=False, type_handler_registry=registry
    )
    step = ITEMS.partition("/")[0]
    save = ocp.args.PyTreeSave({"params": {"params": tree}}, {"params": {"params": options}})
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(items=handler)) as checkpointer:
        checkpointer.save(
            directory / step,
            args=ocp.args.Composite(items=save),
            custom_metadata={"scan_layers": scanned},
        )
