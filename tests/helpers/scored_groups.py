"""Groups with rewards, of samples of given lengths."""

import numpy as np

from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.testing import make_group, make_prompt


def scored_group(
    number: int, *samples: tuple[int, float | None], prompt_tokens: int = 2
) -> ScoredGroup:
    """Samples of (completion tokens, reward) behind a prompt."""
    prompt = make_prompt("", "", id="p", tokens=np.full(prompt_tokens, 7, np.int32))
    lengths, rewards = [length for length, _ in samples], [reward for _, reward in samples]
    return make_group(rewards, lengths=lengths, id=number, prompt=prompt)
