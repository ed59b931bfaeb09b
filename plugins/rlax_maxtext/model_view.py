"""MaxText's model, as its trainer shows it to signals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from maxtext_overrides.config.loading import Config
from maxtext_overrides.trainer import kept_weights
from maxtext_overrides.trainer.kept_weights import KeptWeights
from maxtext_overrides.trainer.model_outputs import BatchScores
from maxtext_overrides.trainer.train_loop import Loop
from maxtext_overrides.variables import published
from rlax_plugin.api import ArraySpec, ModelView, Part

_FLOAT32 = ArraySpec(np.dtype(np.float32))


class MaxTextView(ModelView):
    """The model of a loop, which must be set before signals see it.

    Outputs are computed by compiled forward passes of the trainer's own graph in the trainer's
    layout, with the weights as an argument: one for each requested set of outputs.

    Args:
      config: MaxText's, of the RL loop.
      temperature: temperature of the samples.
    """

    def __init__(self, config: Config, temperature: float):
        self._scores = BatchScores(config, temperature)
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
        loop = self._shown
        current = published(loop.model_state) if weights is None else weights.on_devices()
        for rows, outputs in self._scores.parts(loop, current, batch, names):
            yield Part(rows, {name: array[rows] for name, array in batch.items()}, outputs)

    def keep(self, *, offload: bool = False) -> KeptWeights:
        """See ``ModelView``; returns at once."""
        return KeptWeights.of(self._shown, offload)

    def save(self, path: str) -> None:
        """See ``ModelView``: a parameter checkpoint of MaxText."""
        kept_weights.save(path, self._shown)

    def load(self, path: str, key: str, *, offload: bool = False) -> KeptWeights:
        """See ``ModelView``: a parameter checkpoint of MaxText, or a checkpoint's ``items``."""
        return kept_weights.load(path, self._shown, offload, key)
