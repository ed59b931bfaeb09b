"""Publishes a trainer's weights as a weight version that workers can load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlax_plugin.errors import ConfigError, TrainingError
from rlax_plugin.metrics.waiting import Waiting
from rlax_plugin.ports.training import (
    CheckpointReader,
    Decision,
    FirstWeightsReader,
    NewWeights,
    TrainerPort,
)
from rlax_plugin.weights.publisher import Publisher


def checkpoint_reader(trainer: object, name: str) -> CheckpointReader:
    """Returns the trainer if it can read checkpoints.

    Raises:
      ConfigError: the trainer cannot read checkpoints.
    """
    if not isinstance(trainer, CheckpointReader):
        raise ConfigError(
            "rlax.trainer.name",
            name,
            "has no publish_checkpoint, so it cannot read a checkpoint: give --version",
        )
    return trainer


def first_weights_reader(trainer: object, name: str) -> FirstWeightsReader:
    """Returns the trainer if it can publish the weights that training would start from.

    Raises:
      ConfigError: the trainer cannot publish them.
    """
    if not isinstance(trainer, FirstWeightsReader):
        raise ConfigError(
            "rlax.trainer.name",
            name,
            "has no publish_first, so it cannot give the weights that a config starts from: train "
            "one step, and give the run",
        )
    return trainer


class CheckpointPort(TrainerPort):
    """A trainer port that only publishes weights, without training.

    Args:
      waiting: shows what the trainer does.
    """

    def __init__(self, publisher: Publisher, canary_tokens: np.ndarray, waiting: Waiting):
        self._waiting, self._phase = waiting, ""
        self._publisher, self._canary_tokens = publisher, canary_tokens

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        raise TrainingError("a trainer whose weights are only read cannot train")

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._canary_tokens

    def take(self, weights: NewWeights) -> None:
        self._publisher.publish(weights)

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Does nothing: no step is trained."""

    def before_checkpoint(self, step: int) -> None:
        """Does nothing: there is no controller whose state would belong to the checkpoint."""

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._waiting.begin(phase, ends=f"it ends after at most {of} steps")
        self._waiting.progress(f"step {done} of at most {of} {note}".rstrip())

    def waits(self, what: str, typical_s: float = 0.0) -> None:
        self._waiting.begin(what, typical_s=typical_s)

    def decide(self, step: int) -> Decision:
        return Decision(save=False, stop=True)
