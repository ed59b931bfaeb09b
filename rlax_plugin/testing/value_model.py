"""A value model of the toy policy: a table of features and a linear head, both learned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlax_plugin.errors import ConfigError, TrainingError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.signals.learner import Learner
from rlax_plugin.signals.state_files import SignalState
from rlax_plugin.signals.value_model import ValueLoss, ValueModelChoice


class BigramValueModel:
    """Values ``table[previous token] @ kernel + bias``; see ``ValueModel``.

    Args:
      table: the first features, of the policy that the choice starts from.
      choice: the model that a signal wants.

    Raises:
      ConfigError: it asks for a model of another size.
    """

    def __init__(self, table: np.ndarray, choice: ValueModelChoice):
        if choice.keys:
            raise ConfigError(choice.keys_key, dict(choice.keys), "must be empty with a toy policy")
        head = {"kernel": np.zeros(table.shape[1], np.float32), "bias": np.zeros((), np.float32)}
        self._learner = Learner(choice.optimizer, {"table": table, **head})

    def values(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``ValueModel``."""
        params = self._learner.params
        found_bt = params["table"][batch["inputs"]] @ params["kernel"] + params["bias"]
        return found_bt.astype(np.float32)

    def update(
        self, batch: Mapping[str, np.ndarray], loss: ValueLoss, weight: float
    ) -> tuple[float, dict[str, float]]:
        """See ``ValueModel``."""
        import jax

        slope = jax.value_and_grad(loss, has_aux=True)
        (total, sums), slope_bt = slope(self.values(batch), batch)
        slope_n = (np.asarray(slope_bt) / np.float32(weight)).reshape(-1)
        if not np.isfinite(float(total)):
            raise TrainingError(f"the loss of the values is {float(total)}")
        params, previous_n = self._learner.params, batch["inputs"].reshape(-1)
        of_table = np.zeros_like(params["table"])
        np.add.at(of_table, previous_n, slope_n[:, None] * params["kernel"])
        self._learner.update(
            {
                "table": of_table,
                "kernel": slope_n @ params["table"][previous_n],
                "bias": slope_n.sum(),
            }
        )
        return float(total), {name: float(total) for name, total in sums.items()}

    def save(self, path: str) -> None:
        """See ``ValueModel``."""
        self._learner.save(_state(path))

    def restore(self, path: str) -> None:
        """See ``ValueModel``."""
        self._learner.restore(_state(path))


def _state(path: str) -> SignalState:
    return SignalState(RunFiles(path), 0, "model")
