"""Outputs of the trainer's model for given tokens, such as their log-probs, without sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from maxtext_overrides.kept_positions import fits, logits_per_row
from maxtext_overrides.trainer.host_rows import jitted, local_copy, rows_of
from maxtext_overrides.trainer.loss import OUTPUTS, SAMPLED, make_outputs_fn
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS, Loop
from maxtext_overrides.variables import restore
from rlax_plugin.training.objective.batches import TEMPERATURE

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config
    from maxtext_overrides.trainer.kept_weights import Weights


def target_logprobs_of(
    graph: Any, model_state: nnx.State, data: Mapping[str, Any], temperature: float
) -> jax.Array:
    """Returns log-probs of ``data["targets"]`` given the inputs up to each; to be traced by JAX.

    Args:
      graph, model_state: see ``train_loop.Loop``; call it under ``Loop.shardings()``.
      data: MaxText's arrays, int32 [rows, length]; rows are independent.
      temperature: above 0.

    Returns:
      float32 [rows, length], nats.
    """
    model = nnx.merge(graph, model_state)
    return make_outputs_fn(model.config, temperature)(model, data).logprobs_bt


def input_sharding(config: Config, mesh: jax.sharding.Mesh) -> Any:
    """Returns the sharding of the rows of a batch."""
    from maxtext.utils.sharding import get_input_data_sharding

    return get_input_data_sharding(config, mesh)


def padded(arrays: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """Returns arrays [rows, length, ...] with empty rows at their end.

    Args:
      arrays: name -> array of at most ``rows`` rows.
    """
    short = {name: rows - len(array) for name, array in arrays.items()}
    return {
        name: np.pad(a, [(0, short[name])] + [(0, 0)] * (a.ndim - 1)) if short[name] else a
        for name, a in arrays.items()
    }


class BatchScores:
    """Computes outputs of the model for a batch under given weights, one micro-batch at a time.

    Every host of a trainer calls it with the same arguments, except for the rows.

    Args:
      config: MaxText's config.
      temperature: see ``batches.temperature_of``; above 0.

    Attributes:
      rows: number of rows of a micro-batch.
    """

    def __init__(self, config: Config, temperature: float | None):
        self.rows: int = config.micro_batch_size_to_train_on
        self._temperature, self._positions = temperature, logits_per_row(config)
        self._arrays = (*MAXTEXT_ARRAYS, *([TEMPERATURE] if temperature is None else []))
        self._compiled: dict[tuple[str, ...], Callable[..., dict[str, jax.Array]]] = {}

    def read(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch that ``parts`` reads.

        They include ``rl_group`` if the batch has it and no row has more sampled tokens than kept
        positions: logits are then computed at kept positions only, and otherwise at all.
        """
        found = {name: arrays[name] for name in self._arrays}
        if SAMPLED in arrays and fits(arrays[SAMPLED], self._positions):
            found[SAMPLED] = arrays[SAMPLED]
        return found

    def parts(
        self,
        loop: Loop,
        weights: Weights,
        arrays: Mapping[str, np.ndarray],
        names: tuple[str, ...],
    ) -> Iterator[tuple[slice, dict[str, jax.Array]]]:
        """Runs the model over the rows of a batch, in order.

        Args:
          arrays: of ``read``, for the whole batch; with several hosts for those rows of one
            micro-batch that this host holds, see ``HostRows.share``.
          names: ``logprobs``, ``entropy``, or one of ``loss.OUTPUTS``.

        Yields:
          Rows, and name -> array [rows, length, ...] on the devices; with several hosts on one
          device of this host.
        """
        if names not in self._compiled:
            self._compiled[names] = self._made(loop, names)
        if jax.process_count() > 1:
            with loop.shardings():
                part = rows_of(loop).placed(arrays, self.rows)
                found = self._compiled[names](loop.model_state, weights, part)
            yield slice(0, self.rows), {name: local_copy(array) for name, array in found.items()}
            return
        sharding = input_sharding(loop.config, loop.mesh)
        for start in range(0, len(arrays["inputs"]), self.rows):
            rows = slice(start, start + self.rows)
            with loop.shardings():  # not around a yield: what happens there is the caller's
                part = jax.device_put({name: a[rows] for name, a in arrays.items()}, sharding)
                found = self._compiled[names](loop.model_state, weights, part)
            yield rows, found

    def __call__(
        self, loop: Loop, weights: Weights, arrays: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """float32 [rows, length]: log-probs of ``targets``, as ``ModelView.outputs`` says."""
        found = self.parts(loop, weights, self.read(arrays), ("logprobs",))
        return np.concatenate(jax.device_get([outputs["logprobs"] for _, outputs in found]))

    def _made(self, loop: Loop, names: tuple[str, ...]) -> Callable[..., dict[str, jax.Array]]:
        graph = loop.graph

        def outputs_of_batch(
            model_state: Any, weights: Weights, data: Mapping[str, Any]
        ) -> dict[str, jax.Array]:
            # Of the live state only RNG variables are used; jit drops arguments that are not.
            model = nnx.merge(graph, restore(model_state, weights))
            more = tuple(name for name in names if name in OUTPUTS)
            outputs = make_outputs_fn(model.config, self._temperature, more, self._positions)
            found = outputs(model, data)
            every = {"logprobs": found.logprobs_bt, "entropy": found.entropy_bt}
            return {name: array for name, array in (every | found.further).items() if name in names}

        return jitted(outputs_of_batch, loop.mesh)  # host 0 needs all rows
