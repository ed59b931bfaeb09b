"""Signal ``running_value``: a baseline per prompt that is learned from the run's rewards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.config import Section
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.training.objective.advantages import Outcomes, completions
from rlax_plugin.training.objective.shared_prompts import seen_by
from rlax_plugin.training.signals.model_view import ModelView
from rlax_plugin.training.signals.signal import ADVANTAGE_INPUTS, BatchSignal
from rlax_plugin.training.signals.state_files import SignalState

_VALUES = "rl_values"


class RunningValueConfig(Section):
    """Values of prompts, learned from their rewards; they need no model."""

    rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5,
        description="weight of the newest group in the mean of a prompt; the first one counts "
        "whole",
    )


class RunningValue(BatchSignal):
    """The value of a prompt: an exponential mean of its groups' mean rewards; 0 before the first.

    A batch gets the values from before it. A prompt is identified by its tokens.

    Args:
      rate: weight of the newest group, above 0 and at most 1; the first group has weight 1.

    Attributes:
      metrics: ``objective/running_value``, the mean over trained tokens.
    """

    def __init__(self, rate: float):
        self._rate = rate
        self._values: dict[int, float] = {}
        self.arrays = {_VALUES: ADVANTAGE_INPUTS[_VALUES]}

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        values_bt = self.arrays[_VALUES].zeros(*batch["rl_mask"].shape)
        for prompt, rows, t in _samples(batch):
            values_bt[rows, t] = self._values.get(prompt, 0.0)
        trained_n = values_bt[batch["rl_mask"] > 0]
        self.metrics = {"objective/running_value": (float(trained_n.sum()), trained_n.size)}
        return {_VALUES: values_bt}

    def learn(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Updates the values with the groups of a batch, in their order."""
        rewards: dict[tuple[int, int], list[float]] = {}  # of (group's number, prompt)
        for prompt, rows, t in _samples(batch):
            first = (rows[0], t[0])
            paid = rewards.setdefault((int(batch["rl_group"][first]), prompt), [])
            paid.append(float(batch["rl_rewards"][first]))
        for (_, prompt), paid in sorted(rewards.items()):
            mean = sum(paid) / len(paid)
            before = self._values.get(prompt, mean)
            self._values[prompt] = before + self._rate * (mean - before)

    def save(self, step: int, state: SignalState) -> None:
        prompts, values = self._values.keys(), self._values.values()
        state.put(
            {
                "prompts": np.fromiter(prompts, np.uint64, len(prompts)),
                "values": np.fromiter(values, np.float64, len(values)),
            }
        )

    def restore(self, step: int, state: SignalState) -> None:
        found = state.get()
        pairs = zip(found["prompts"].tolist(), found["values"].tolist(), strict=True)
        self._values = dict(pairs)


def less_value(outcomes: Outcomes) -> np.ndarray:
    """An advantage slot: a sample's complete reward minus the value of each of its states."""
    assert outcomes.values_nt is not None, "a signal gives them"
    return outcomes.totals_n[:, None] - outcomes.values_nt


def _samples(batch: Mapping[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(hash of the prompt's tokens, rows and positions of the completion) of each scored sample."""
    for rows, t in completions(batch):
        row = int(rows[0])
        seen_t = seen_by(batch["inputs_segmentation"][row], t[0])
        tokens = batch["inputs"][row, seen_t]
        digest = hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=8).digest()
        yield int.from_bytes(digest), rows, t
