"""Groups with rewards, of samples of given lengths."""

from __future__ import annotations

import numpy as np

from rlax_plugin.types import (
    Episode,
    Prompt,
    Sampled,
    Score,
    ScoredGroup,
    Trajectory,
    Turn,
    Unscored,
)


def scored_group(
    number: int, *samples: tuple[int, float | None], prompt_tokens: int = 2
) -> ScoredGroup:
    """Samples of (completion tokens, reward) behind a prompt."""
    prompt = Prompt("p", np.full(prompt_tokens, 7, np.int32), "", "")
    episodes = tuple(
        Episode(i, (Trajectory((Turn(prompt.tokens, sampled(i, length)),)),))
        for i, (length, _) in enumerate(samples)
    )
    scores = tuple(
        Unscored("it raised") if reward is None else Score(reward, (reward,))
        for _, reward in samples
    )
    return ScoredGroup(number, 1, prompt, episodes, scores)


def sampled(seed: int, length: int) -> Sampled:
    """So many tokens of version 0, each with probability 1."""
    return Sampled(
        seed,
        tokens=np.ones(length, np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish="stop",
    )
