"""Divides one RL step into several MaxText steps, and adds up their metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlax_plugin.training.objective.batches import DEMONSTRATED
from rlax_plugin.training.objective.diagnostics import GAP_SUMS

log = logging.getLogger("rlax.trainer")


@dataclass(frozen=True, slots=True)
class Updates:
    """The optimizer updates of one RL step; each is a MaxText step.

    Attributes:
      epochs: passes over the step's batch.
      mini_batches: number of updates per pass; each gets the same number of rows.
      seed: seed of the order of rows.
    """

    epochs: int = 1
    mini_batches: int = 1
    seed: int = 0

    @property
    def per_step(self) -> int:
        return self.epochs * self.mini_batches

    def of(self, step: int, batch: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batch of every update, in order.

        Each epoch distributes the rows again: sorted by their trained tokens, every
        ``mini_batches`` neighbours go to as many mini-batches at random. So all get about as many
        tokens, and each has some as long as at least ``mini_batches`` rows have some. With one
        mini-batch the batch is unchanged. Rows of demonstrations are distributed apart.

        Args:
          step: RL step, counts from 1; with ``seed`` and epoch it determines the order.
          batch: name -> [rows, length, ...], with ``rl_mask``; ``mini_batches`` divides the rows.
        """
        supervised = "rl_mask" not in batch
        if not supervised and np.count_nonzero(batch["rl_mask"].any(axis=1)) < self.mini_batches:
            log.warning(
                "step %d: a mini-batch has no token to train; momentum and weight decay move the "
                "weights all the same",
                step,
            )
        for epoch in range(self.epochs):
            if self.mini_batches == 1:
                yield dict(batch)
                continue
            rng = np.random.default_rng((self.seed, step, epoch))
            order_b = rng.permutation(len(batch["rl_mask"]))  # decides between equal rows
            tokens_b = batch["rl_mask"][order_b].sum(axis=1)
            shown_b = np.zeros_like(tokens_b)
            if DEMONSTRATED in batch:
                shown_b = batch[DEMONSTRATED][order_b].sum(axis=1)
            order_b = order_b[np.lexsort((-shown_b, -tokens_b, shown_b > 0))]
            rows = rng.permuted(order_b.reshape(-1, self.mini_batches), axis=1)
            for rows_b in rows.T:
                yield {name: array[rows_b] for name, array in batch.items()}


@jax.jit
def _added(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


class StepMetrics:
    """Sums of the metrics of an RL step's updates, kept on the device without waiting."""

    def __init__(self) -> None:
        self._totals: tuple[Any, Any] | None = None
        self._updates = 0

    def add(self, scalars: Mapping[str, Any], sums: Mapping[str, Any]) -> None:
        """Adds the metrics of one update: MaxText's scalars, and the objective's sums.

        Trainer and sampler hold equal weights only before the first update, so the log-prob gap of
        later updates is left out.
        """
        found = (dict(scalars), dict(sums))
        if self._updates:
            for name in found[1].keys() & GAP_SUMS:
                found[1][name] = jnp.zeros_like(found[1][name])
        self._totals = found if self._totals is None else _added(self._totals, found)
        self._updates += 1

    def take(self) -> dict[str, Any]:
        """Returns means of scalars and totals of sums over the updates; then starts again."""
        assert self._totals is not None, "no update has been added"
        (scalars, sums), updates = self._totals, self._updates
        self._totals, self._updates = None, 0
        if updates > 1:
            scalars = {name: value / updates for name, value in scalars.items()}
        return scalars | sums
