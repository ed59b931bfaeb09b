"""The state of a running loop of MaxText, and callbacks that give it batches and see its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from rlax_plugin.training.objective.arrays import ArraySpec


@dataclass(slots=True)
class Loop:
    """The state of the running loop that callers see.

    Attributes:
      config: config of this loop.
      completed: finished steps, those of earlier processes included.
      started_from: ``completed`` when this process began.
      mesh: the devices.
      graph: the model's ``nnx.GraphDef``.
      model_state: the model's variables after ``completed`` steps. The next train step donates
        their buffers: read or copy them before ``batches`` or ``on_step_end`` returns.
    """

    config: Any
    completed: int
    started_from: int
    mesh: Any
    graph: Any
    model_state: Any

    @contextmanager
    def shardings(self) -> Iterator[None]:
        """Sets the mesh and the axis rules under which the model is called."""
        from flax.core.spmd import logical_axis_rules

        with jax.set_mesh(self.mesh), logical_axis_rules(self.config.logical_axis_rules):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Callbacks from inside the loop; an exception in any of them ends the loop and is raised.

    Attributes:
      batches: step -> arrays [rows, length, ...], for all of the step's updates; may block.
      on_step_end: (loop, metrics) after each step. Metrics are device values: MaxText's scalars,
        means over the step's updates, and the objective's sums over them, under their own names.
      decide: step -> (save, stop), called once after ``on_step_end``: True, to save a checkpoint
        that is not due, and True, to end the loop after this step.
      on_start: called when the weights exist, before the train step is compiled.
      before_checkpoint: step, right before MaxText saves the checkpoint of that step.
      update: arrays of one update -> the same, and ``update_arrays``.
      update_arrays: name -> spec of what ``update`` adds: what depends on a whole update.
      place: arrays of one update -> what MaxText gets, for a trainer over several hosts.
      next_update: the arrays of the next update that MaxText gets, on a host that has no batches;
        then ``batches``, ``update`` and ``place`` are not called.
    """

    batches: Callable[[int], Mapping[str, np.ndarray]]
    on_step_end: Callable[[Loop, Mapping[str, Any]], None]
    decide: Callable[[int], tuple[bool, bool]] = lambda step: (False, False)
    on_start: Callable[[Loop], None] = lambda loop: None
    before_checkpoint: Callable[[int], None] = lambda step: None
    update: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] = lambda arrays: arrays
    update_arrays: Mapping[str, ArraySpec] = MappingProxyType({})
    place: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]] = lambda arrays: arrays
    next_update: Callable[[], Mapping[str, Any]] | None = None
