"""Demonstrations that train beside RL: rows of their own in every batch, and a term of the loss.

    loss = - J + w(s) / T * sum over the T trained tokens of the demonstrations of - log pi

T counts the tokens of one update, however it is cut into micro-batches, and w(s) is the weight in
RL step s. log pi is that of temperature 1, whatever the rollouts' is. Signals and the objective do
not see these rows, whose ``rl_mask`` is 0. The rows of a step are a function of its number, the
seed and the data, so a step that is trained again, after a kill or in a replay, has the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlax_maxtext.config_agreement import Demonstrations
from rlax_maxtext.demonstrations import Epochs, check_plan, plan_of, read
from rlax_maxtext.options import MIXED, MixedDemonstrations
from rlax_maxtext.supervised import laid_out
from rlax_plugin.api import (
    DEMONSTRATED,
    TEMPERATURE,
    ConfigError,
    LossTerm,
    RlaxSection,
    RunFiles,
    value_at,
)

TERM = "demonstration_loss"
_PLAN_RECORD = "mixed_demonstrations.json"


def term(options: MixedDemonstrations) -> LossTerm:
    """The mean of - log pi over the trained tokens of demonstrations; its coefficient is w(s)."""

    def total(outputs: Any, data: Mapping[str, Any]) -> Any:
        import jax.numpy as jnp

        return -jnp.where(data[DEMONSTRATED] > 0, outputs.logprobs_bt, 0.0).sum()

    return LossTerm(
        total,
        lambda data: data[DEMONSTRATED].sum(),
        coefficient=lambda data: value_at(options.weight, data["rl_step"].max()),
    )


class MixedRows:
    """Adds the rows of demonstrations to the batches of RL.

    Args:
      steps: number of RL steps.

    Attributes:
      metrics: of the newest batch; its demonstrations, and their trained tokens.
    """

    def __init__(
        self, section: RlaxSection, options: MixedDemonstrations, data: Demonstrations, steps: int
    ):
        self._table, self._pad_id = data.train, data.source.pad_id
        self._length, self._only = section.row_tokens, section.rollouts.only_temperature
        in_row = section.batches.sequences_per_row
        self._epochs = Epochs(
            (self._table.lengths - 1).tolist(),
            length=self._length,
            sequences_per_row=in_row,
            batch_rows=options.rows,
            epochs=steps,
            seed=section.seed,
            most_steps=steps,
        )
        own = {f"{MIXED}.rows": options.rows, f"{MIXED}.turns": options.turns}
        self._plan, self._name = plan_of(section, self._length, own, data.train), data.name
        self.metrics: dict[str, float] = {}

    def start(self, files: RunFiles, completed: int, replayed: RunFiles | None = None) -> None:
        """Compares with what the run has trained already, or records what it will train.

        Args:
          files: the folder ``prepared`` of the run.
          completed: steps that are trained.
          replayed: the same folder of the run that a replay trains again.

        Raises:
          ConfigError: the data or an option is another one.
        """
        key = f"{MIXED}.data"
        if replayed is not None:
            if not replayed.exists(_PLAN_RECORD):
                raise ConfigError(key, self._name, "the run has no record of its demonstrations")
            check_plan(replayed, _PLAN_RECORD, self._plan, key, self._name, 1)
        check_plan(files, _PLAN_RECORD, self._plan, key, self._name, completed)

    def added(self, step: int, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a batch with the demonstrations of a step in further rows, behind its own."""
        rows = [read(self._table, row) for row in self._epochs.rows(step)]
        arrays = laid_out(rows, self._length, self._pad_id)
        shown_bt = (arrays["targets_segmentation"] > 0).astype(np.int32)
        arrays[DEMONSTRATED] = shown_bt
        arrays["rl_step"] = np.full_like(shown_bt, step)
        own = dict(batch) | {DEMONSTRATED: np.zeros_like(batch["rl_mask"])}
        if tempers(self._only):
            arrays[TEMPERATURE] = np.ones(shown_bt.shape, np.float32)
            if self._only is not None:
                own[TEMPERATURE] = np.full(batch["rl_mask"].shape, self._only, np.float32)
        self.metrics = {
            "demonstrations/tokens": float(shown_bt.sum()),
            "demonstrations/count": float(sum(map(len, rows))),
        }
        return {
            name: np.concatenate(
                [array, arrays.get(name, np.zeros((len(rows), *array.shape[1:]), array.dtype))]
            )
            for name, array in own.items()
        }


def tempers(only: float | None) -> bool:
    """True if rows of RL have another temperature than demonstrations, or may have."""
    return only != 1
