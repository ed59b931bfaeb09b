"""What a worker is asked for: seeds and settings that follow from the config alone; its answer."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.protocols import PromptSource
from rlax_plugin.types import Prompt, Rollout, SamplingParams


def sample_seed(run_seed: int, purpose: str, group: int | str, index: int) -> int:
    """The 64-bit seed of one sample: a hash of who it is, so that issuing it again repeats it."""
    name = f"{run_seed}/{purpose}/{group}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def sampling_params(section: RlaxSection, source: PromptSource) -> SamplingParams:
    r = section.rollouts
    return SamplingParams(
        temperature=r.temperature,
        top_k=r.top_k,
        top_p=r.top_p,
        max_new_tokens=r.max_new_tokens,
        stop_ids=() if r.ignore_stop else source.stop_ids,
    )


def training_prompts(section: RlaxSection, source: PromptSource) -> Sequence[Prompt]:
    """All training prompts. Workers refuse what does not fit, at the step that asks for it.

    Raises:
      ConfigError: there are none, or one is longer than the config allows.
    """
    prompts = source.prompts("train")
    if not prompts:
        raise ConfigError("rlax.prompt_source", section.prompt_source.name, "has no prompts")
    longest, limit = max(len(p.tokens) for p in prompts), section.rollouts.max_prompt_tokens
    if longest > limit:
        reason = f"must be at least {longest}, the tokens of the longest training prompt"
        raise ConfigError("rlax.rollouts.max_prompt_tokens", limit, reason)
    return prompts


def decoded(source: PromptSource, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with their text."""
    return [dataclasses.replace(r, text=source.decode(r.tokens)) for r in rollouts]
