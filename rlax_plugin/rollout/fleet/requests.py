"""Requests to workers, whose seeds and settings follow from the config alone; and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.types import Episode, Sampled, SamplingParams, Trajectory, Turn
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.checking import completion_text, stop_strings_of
from rlax_plugin.ports.protocols import PromptSource


def sample_seed(
    run_seed: int,
    purpose: str,
    group: int | str,
    index: int,
    trajectory: int = 0,
    turn: int = 0,
) -> int:
    """Returns the 64-bit seed of one turn: a hash of its position, the same at each attempt."""
    later = f"/{trajectory}/{turn}" if trajectory or turn else ""
    name = f"{run_seed}/{purpose}/{group}/{index}{later}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def sampling_params(section: RlaxSection, source: PromptSource) -> SamplingParams:
    """Returns the settings of requests; the temperature of a schedule is its last one."""
    r = section.rollouts
    return SamplingParams(
        temperature=r.last_temperature,
        top_k=r.top_k,
        top_p=r.top_p,
        max_new_tokens=r.max_new_tokens,
        stop_ids=() if r.ignore_stop else source.stop_ids,
        stop_strings=() if r.ignore_stop else stop_strings_of(source),
    )


def single_turn(
    source: PromptSource, context: np.ndarray, samples: Sequence[Sampled], first: int = 0
) -> tuple[Episode, ...]:
    """Makes each sample an episode with one turn; its text is made harmless.

    Args:
      context: int32 [length], the prompt.
      first: index of the first sample within its group.
    """
    return tuple(
        Episode(
            index=index,
            trajectories=(Trajectory((Turn(context, sampled),)),),
            text=harmless(completion_text(source, sampled.tokens)),
        )
        for index, sampled in enumerate(samples, first)
    )
