"""Groups with rewards, of samples of given lengths."""

from __future__ import annotations

import numpy as np

from rlax_plugin.types import Group, Prompt, Rollout


def scored_group(number: int, *samples: tuple[int, float | None], prompt_tokens: int = 2) -> Group:
    """Samples of (completion tokens, reward) behind a prompt."""
    prompt = Prompt("p", np.full(prompt_tokens, 7, np.int32), "", "")
    rollouts = tuple(
        Rollout(
            group_id=number,
            index=i,
            seed=i,
            tokens=np.ones(length, np.int32),
            logprob_full=np.zeros(length, np.float32),
            logprob_sampled=np.zeros(length, np.float32),
            versions=np.zeros(length, np.int32),
            finish_reason="stop",
            reward=reward,
        )
        for i, (length, reward) in enumerate(samples)
    )
    return Group(number, 1, prompt, rollouts)
