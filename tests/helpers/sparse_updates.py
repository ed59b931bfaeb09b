"""A trainer process whose updates change a few weights of the toy policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from two_parts import CANARY_TOKENS

from rlax_plugin.ports.protocols import WeightStore
from rlax_plugin.ports.training import NewWeights
from rlax_plugin.testing import FakeEngine, policy
from rlax_plugin.types import Canary, WeightVersion
from rlax_plugin.weights.publisher import Publisher, by_one_host

LIMIT_S = 60
Weights = dict[str, np.ndarray]


class Announcer:
    async def writing(self, path: str) -> None:
        pass

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        pass


class Failures:
    def fail_from_thread(self, error: BaseException) -> None:
        raise error


class SparseTrainer:
    """Publishes version after version; by default one of three is written in full.

    Attributes:
      versions: those published so far.
      weights: what they hold.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        store: WeightStore,
        announcer: Any = None,
        full_every: int = 3,
    ):
        self.versions: list[WeightVersion] = []
        self.weights: list[Weights] = []
        self.publisher = Publisher(
            loop=loop,
            write=by_one_host(store),
            directory=str(directory),
            announcer=announcer or Announcer(),
            failures=Failures(),  # type: ignore[arg-type]
            deadline_s=LIMIT_S,
            full_every=full_every,
            on_published=self.versions.append,
        )

    def publish(self, weights: Weights | None = None) -> WeightVersion:
        """Publishes some weights, or those of an update; returns when they are visible."""
        step = len(self.versions)
        weights = self._updated(step) if weights is None else weights
        tokens = CANARY_TOKENS
        canary = Canary(tokens, policy.sequence_log_probs(weights, tokens), 1e-4)
        self.publisher.publish(NewWeights(step, {"base": weights}, canary))
        self.publisher.wait()
        self.weights.append(weights)
        return self.versions[-1]

    def _updated(self, step: int) -> Weights:
        if not step:
            return policy.initial_weights(0)
        weights = {name: array.copy() for name, array in self.weights[-1].items()}
        rows = np.random.default_rng(step).integers(0, policy.VOCABULARY, 3)
        weights["table"][rows, rows] *= np.float32(-1.5)
        weights["bias"][step] = -0.0
        return weights


def holds(engine: FakeEngine, weights: Mapping[str, np.ndarray]) -> bool:
    """True if these are the weights in use, to the bit."""
    held = engine._held.weights
    return all(held[name].tobytes() == array.tobytes() for name, array in weights.items())
