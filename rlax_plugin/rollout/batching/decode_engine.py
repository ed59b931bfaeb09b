"""The inputs and outputs of a decode engine's slots. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlax_plugin.base.types import SamplingParams

MAX_STOP_IDS = 8
Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt and the slots its samples go to.

    Attributes:
      tokens: int32 [prompt_length], or [prompt_length + generated] where a sample continues.
      slots: free slots, one per sample.
      seeds: 64-bit seeds, one per sample.
      sampling: the same for all samples; its ``max_new_tokens`` counts all of a sample's tokens.
      generated: the number of ``tokens``, at their end, generated earlier for this sample.
    """

    tokens: np.ndarray
    slots: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams
    generated: int = 0

    def misfit(self, max_prompt_tokens: int, max_new_tokens: int) -> str | None:
        """Returns the reason slots with these limits cannot hold it; None if they can."""
        length, most = len(self.tokens), self.sampling.max_new_tokens
        if not 1 <= length <= max_prompt_tokens:
            return f"a prompt of {length} tokens; 1 to {max_prompt_tokens} fit"
        if not 1 <= most <= max_new_tokens:
            return f"max_new_tokens {most} is not in 1..{max_new_tokens}"
        if not 0 <= self.generated < min(length, most):
            return (
                f"{self.generated} of {length} tokens are older, and max_new_tokens is {most}: "
                "nothing is left to generate, or no prompt"
            )
        if len(self.sampling.stop_ids) > MAX_STOP_IDS:
            return f"{len(self.sampling.stop_ids)} stop ids; at most {MAX_STOP_IDS}"
        if len(self.slots) != len(self.seeds):
            return f"{len(self.slots)} slots for {len(self.seeds)} seeds"
        return None


@dataclass(frozen=True, slots=True)
class SlotOutput:
    """A slot's tokens since it was filled, [length] each.

    ``logprobs`` is as in ``rlax_plugin.base.types.Sampled``; ``truncated_logprobs`` are those of
    the truncated distribution that the token was sampled from.
    """

    slot: int
    tokens: np.ndarray
    logprobs: np.ndarray
    truncated_logprobs: np.ndarray


class DecodeSlots(Protocol):
    """The decode engine, as a scheduler uses it.

    Attributes:
      slot_steps_total: tokens that decode steps generated so far: one per step and slot in use.
      prefill_kept_total: tokens of prompts so far that were not prefilled, because a slot kept
        them.
      rounds_caches: True if decoding reads the keys and values of earlier tokens with less
        precision than prefill computes them, so that their log-probs differ.
      converts: True if ``convert`` changes arrays.
    """

    slots: int
    max_prompt_tokens: int
    max_new_tokens: int
    vocabulary: int
    steps_total: int
    slot_steps_total: int
    tokens_total: int
    prefill_tokens_total: int
    prefill_computed_total: int
    prefill_kept_total: int

    @property
    def rounds_caches(self) -> bool: ...

    @property
    def converts(self) -> bool: ...

    @property
    def free_slots(self) -> list[int]: ...

    def variables_like(self) -> Mapping[str, Any]: ...

    def lay_out(self, arrays: dict[str, Any]) -> None:
        """Replaces a version's arrays by the layout that decoding reads fastest; shapes stay."""
        ...

    def convert(self, arrays: dict[str, Any]) -> None:
        """Replaces arrays that were laid out and verified by what samples are generated with.

        It may be called again with the result. Shapes and dtypes that are compared stay.
        """
        ...

    def fingerprints(self, arrays: Arrays, made_by: Callable[[Arrays], Arrays]) -> Arrays:
        """Returns name -> uint32 fingerprint of each array in its layout before ``lay_out``."""
        ...

    def insert(self, weights: Mapping[str, Any], requests: Sequence[Prefill]) -> None: ...

    def decode(
        self, weights: Mapping[str, Any], max_steps: int, stop_when_free: bool
    ) -> list[SlotOutput]: ...

    def read(self, slots: Sequence[int]) -> list[SlotOutput]: ...

    def release(self, slots: Sequence[int]) -> None: ...

    def logprobs(self, weights: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray: ...

    def warm_up(self) -> None: ...

    def kept_for(self, context: np.ndarray) -> int | None:
        """Returns the free slot that keeps the first tokens of a context; None if there is none.

        Nothing else should be put into it before the sample that continues this context.
        """
        ...

    def forget_contexts(self) -> None:
        """Forgets what free slots keep; called when the weights change, while all are free."""
        ...
