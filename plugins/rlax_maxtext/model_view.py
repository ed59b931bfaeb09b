"""MaxText's model, as its trainer shows it to signals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from maxtext_overrides.config.loading import Config
from maxtext_overrides.trainer import kept_weights
from maxtext_overrides.trainer.kept_weights import KeptWeights
from maxtext_overrides.trainer.model_outputs import BatchScores, padded
from maxtext_overrides.trainer.train_loop import Loop
from maxtext_overrides.variables import published
from rlax_maxtext.several_hosts import Orders
from rlax_plugin.api import (
    ArraySpec,
    ConfigError,
    ModelView,
    Part,
    ResolvedConfig,
    TrainingError,
    ValueModel,
    ValueModelChoice,
)

_FLOAT32 = ArraySpec(np.dtype(np.float32))


class MaxTextView(ModelView):
    """The model of a loop, which must be set before signals see it.

    Outputs are computed by compiled forward passes of the trainer's own graph in the trainer's
    layout, with the weights as an argument: one for each requested set of outputs.

    Args:
      config: MaxText's, of the RL loop.
      temperature: the config's ``only_temperature``.
      orders: has the other hosts of the trainer do the same; None: there are none.
      given: the keys from which ``config`` was made, for other models; None: there are no others.
    """

    def __init__(
        self,
        config: Config,
        temperature: float | None,
        orders: Orders | None = None,
        given: ResolvedConfig | None = None,
    ):
        self._given = given
        self._scores, self._orders = BatchScores(config, temperature), orders or Orders()
        self._loop: Loop | None = None
        self.resumable = config.enable_checkpointing
        features = ArraySpec(np.dtype(config.dtype), (config.emb_dim,))
        self.outputs = {"logprobs": _FLOAT32, "entropy": _FLOAT32, "features": features}

    def show(self, loop: Loop) -> None:
        """Replaces the loop; signals see its present weights."""
        self._loop, self.version = loop, loop.completed

    @property
    def _shown(self) -> Loop:
        assert self._loop is not None, "a loop starts before signals do"
        return self._loop

    def _parts(
        self, batch: Mapping[str, np.ndarray], names: tuple[str, ...], weights: Any
    ) -> Iterator[Part]:
        loop, orders = self._shown, self._orders
        current = published(loop.model_state) if weights is None else weights.on_devices(loop)
        count = self._scores.rows
        for start in range(0, len(batch["inputs"]), count):
            rows = slice(start, start + count)
            part = {name: array[rows] for name, array in batch.items()}
            given = padded(self._scores.read(part), count)
            if orders.any:
                said = {"names": " ".join(names), "weights": orders.number_of(weights)}
                given = orders.divided(loop, "forward", given, **said)
            for _, outputs in self._scores.parts(loop, current, given, names):
                present = len(part["inputs"])
                if present < count:
                    outputs = {name: array[:present] for name, array in outputs.items()}
                yield Part(rows, part, outputs)

    def keep(self, *, offload: bool = False) -> KeptWeights:
        """See ``ModelView``; returns at once."""
        number = self._orders.number()
        self._orders.all("keep", offload=str(offload), number=number)
        kept = KeptWeights.of(self._shown, offload)
        self._orders.know(kept, number)
        return kept

    def save(self, path: str) -> None:
        """See ``ModelView``: a parameter checkpoint of MaxText."""
        self._orders.all("save", path=path)
        kept_weights.save(path, self._shown)

    def load(self, path: str, key: str, *, offload: bool = False) -> KeptWeights:
        """See ``ModelView``: a parameter checkpoint of MaxText, or a checkpoint's ``items``."""
        number = self._orders.number()
        self._orders.all("load", path=path, key=key, offload=str(offload), number=number)
        loaded = kept_weights.load(path, self._shown, offload, key)
        self._orders.know(loaded, number)
        return loaded

    def value_model(self, choice: ValueModelChoice) -> ValueModel:
        """See ``ModelView``: a model of MaxText's on the policy's mesh."""
        from maxtext_overrides.trainer.value_model import MaxTextValueModel
        from rlax_maxtext.critic.model_config import critic_config

        if self._given is None:
            raise TrainingError("this trainer builds no models for signals")
        if self._orders.any:
            reason = "must be 1 with signal critic, which learns on one host; value_head can learn"
            raise ConfigError("--hosts", None, f"{reason} on several")
        config = critic_config(self._given, choice.keys, choice.keys_key)
        return MaxTextValueModel(config, self._shown, choice)
