"""The sampler ``shuffled``, which chooses every prompt equally often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlax_curation.epochs import Epochs
from rlax_plugin.api import NoOptions, PassRates, Prompt, Sampler


class ShuffledConfig(NoOptions):
    """Chooses every prompt once per epoch, in a new random order in each epoch.

    Where prompts have domains with weights, each domain has epochs of its own, and the next prompt
    comes from the domain whose number of chosen prompts is the furthest below the number that its
    weight asks for.
    """


class Shuffled(Sampler):
    """Chooses every prompt once per epoch, in a new random order; domains by their weights."""

    def __init__(self) -> None:
        self._epochs = Epochs()

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        return [self._epochs.next(prompts, rng) for _ in range(count)]

    def state(self) -> dict[str, Any]:
        return self._epochs.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._epochs.restore(state)
