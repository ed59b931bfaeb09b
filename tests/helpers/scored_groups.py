"""Groups with rewards, of samples of given lengths."""

from __future__ import annotations

import numpy as np

from rlax_plugin.testing.builders import make_group
from rlax_plugin.types import Prompt, ScoredGroup


def scored_group(
    number: int, *samples: tuple[int, float | None], prompt_tokens: int = 2
) -> ScoredGroup:
    """Samples of (completion tokens, reward) behind a prompt."""
    return make_group(
        [reward for _, reward in samples],
        lengths=[length for length, _ in samples],
        id=number,
        prompt=Prompt("p", np.full(prompt_tokens, 7, np.int32), "", ""),
    )
