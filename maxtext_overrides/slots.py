"""What goes into a decode engine's slots and what comes out. Imports neither JAX nor MaxText."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlax_plugin.types import SamplingParams

MAX_STOP_IDS = 8


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt and the slots its samples go to.

    Attributes:
      tokens: int32 [prompt_length].
      slots: free slots, one per sample.
      seeds: 64-bit seeds, one per sample.
      sampling: the same for all samples.
    """

    tokens: np.ndarray
    slots: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Finished:
    """A completed sample; arrays are [length], see ``rlax_plugin.types.Rollout``."""

    slot: int
    tokens: np.ndarray
    logprob_full: np.ndarray
    logprob_sampled: np.ndarray


class Slots(Protocol):
    """What a scheduler needs of ``decode.DecodeEngine``; see there."""

    slots: int
    max_prompt_tokens: int
    max_new_tokens: int
    steps_total: int
    tokens_total: int

    @property
    def free_slots(self) -> list[int]: ...

    def variables_like(self) -> Mapping[str, Any]: ...

    def insert(self, weights: Mapping[str, Any], requests: Sequence[Prefill]) -> None: ...

    def decode(
        self, weights: Mapping[str, Any], max_steps: int, stop_when_free: bool
    ) -> list[Finished]: ...

    def release(self, slots: Sequence[int]) -> None: ...

    def warm_up(self, samples_per_prompt: int = 1) -> None: ...
