"""The bigram policy as its trainer shows it to signals, and its value model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError, TrainingError
from rlax_plugin.base.files.packing import pack, unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing import policy
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import temperature_of
from rlax_plugin.training.signals.learner import Learner
from rlax_plugin.training.signals.model_view import ModelView, Part
from rlax_plugin.training.signals.state_files import SignalState
from rlax_plugin.training.signals.value_model import ValueLoss, ValueModelChoice

_FLOAT32 = np.dtype(np.float32)
_FILE = "weights.npz"


class BigramView(ModelView):
    """All outputs of the bigram policy; its features are the previous token's row of the table.

    Log-probs and entropy are NaN where ``ModelView`` does not define them.

    Args:
      weights: the first weights.
      version: version of these weights.
      temperature: see ``batches.temperature_of``.
      part_rows: number of rows that are computed at once; 0: all of a batch.
    """

    def __init__(
        self, weights: policy.Weights, version: int, temperature: float | None, part_rows: int = 0
    ):
        self._weights, self.version = weights, version
        self._temperature, self._part_rows = temperature, part_rows
        self.outputs = {
            "logprobs": ArraySpec(_FLOAT32),
            "entropy": ArraySpec(_FLOAT32),
            "features": ArraySpec(_FLOAT32, policy.SHAPES["table"][1:]),
        }

    def show(self, weights: policy.Weights, version: int) -> None:
        """Replaces the weights with newer ones."""
        self._weights, self.version = weights, version

    def _parts(
        self, batch: Mapping[str, np.ndarray], names: tuple[str, ...], weights: Any
    ) -> Iterator[Part]:
        rows = len(batch["inputs"])
        for start in range(0, rows, self._part_rows or rows):
            which = slice(start, start + (self._part_rows or rows))
            part = {name: array[which] for name, array in batch.items()}
            outputs = self._outputs(weights or self._weights, part)
            yield Part(which, part, {name: outputs[name] for name in names})

    def _outputs(
        self, weights: policy.Weights, batch: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        shape = batch["inputs"].shape
        previous_n = batch["inputs"].reshape(-1)
        temperature = temperature_of(batch, self._temperature)
        if isinstance(temperature, np.ndarray):
            temperature = temperature.reshape(-1)
        logprobs_nv = policy.log_probs(weights, previous_n, temperature)
        target_n = batch["targets"].reshape(-1, 1)
        found = {
            "logprobs": np.take_along_axis(logprobs_nv, target_n, axis=-1),
            "entropy": -(np.exp(logprobs_nv) * logprobs_nv).sum(axis=-1),
            "features": weights["table"][previous_n],
        }
        outputs = {
            name: array.reshape(self.outputs[name].shape(*shape)).astype(_FLOAT32)
            for name, array in found.items()
        }
        if "rl_group" in batch:  # others are not defined: whoever reads them is to notice
            for name in ("logprobs", "entropy"):
                outputs[name] = np.where(batch["rl_group"] > 0, outputs[name], _FLOAT32.type("nan"))
        return outputs

    def keep(self, *, offload: bool = False) -> dict[str, np.ndarray]:
        """See ``ModelView``; the weights are in host memory in any case."""
        return {name: array.copy() for name, array in self._weights.items()}

    def save(self, path: str) -> None:
        """See ``ModelView``."""
        RunFiles(path).put(_FILE, pack(self._weights))

    def load(self, path: str, key: str, *, offload: bool = False) -> dict[str, np.ndarray]:
        """See ``ModelView``.

        Raises:
          ConfigError: there are no weights, or they are damaged or another model's.
        """
        try:
            found = unpack(RunFiles(path).get(_FILE))
        except (OSError, ValueError, RlaxError) as error:
            raise ConfigError(key, path, f"cannot be read: {error}") from error
        shapes = {name: array.shape for name, array in found.items()}
        if shapes != policy.SHAPES:
            reason = f"holds another model's weights: {shapes}, expected {policy.SHAPES}"
            raise ConfigError(key, path, reason)
        return found

    def value_model(self, choice: ValueModelChoice) -> BigramValueModel:
        """See ``ModelView``."""
        if choice.start == "scratch":
            weights: policy.Weights = policy.initial_weights(0)
        else:
            weights = self._weights
            if choice.start != "policy":
                weights = self.load(choice.start, choice.key)
        return BigramValueModel(weights["table"], choice)


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
