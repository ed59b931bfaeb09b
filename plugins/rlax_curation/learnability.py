"""The sampler ``learnability``, which weights prompts by p (1 - p)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_curation.candidates import Candidates, CandidatesConfig
from rlax_plugin.api import PassRates, Prompt, Sampler


class LearnabilityConfig(CandidatesConfig):
    """Chooses prompts with an intermediate pass rate p more often.

    A prompt is chosen from random candidates, with a probability proportional to a power of
    p (1 - p) (LILO, https://arxiv.org/abs/2502.12272). p is sampled from the posterior of the pass
    rate (Thompson sampling), so that prompts of which little is known are tried, too.
    """

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.02,
        description="smallest value that is used for p (1 - p), so that every prompt can still be "
        "chosen",
    )
    exponent: Annotated[float, Field(ge=0, le=64)] = Field(
        default=1.0,
        description="exponent of p (1 - p): 0 chooses uniformly, and large values nearly always "
        "choose the best candidate",
    )


class Learnability(Sampler):
    """Samples prompts with weight p(1-p), the learnability rule of LILO (arXiv 2502.12272).

    For each prompt chosen, ``candidates`` are sampled uniformly and one of them is picked with
    probability proportional to ``max(floor, q (1 - q)) ** exponent``, where q is sampled from the
    posterior of its pass rate (Thompson sampling). Easy and hopeless prompts become rare; they are
    chosen again when the policy has moved so far that they may have changed. If prompts have
    domains, all candidates are of one domain, which is sampled by its weight.
    """

    def __init__(self, config: LearnabilityConfig) -> None:
        self._floor, self._exponent = config.floor, config.exponent
        self._candidates = Candidates(config)

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        def pick(candidates: np.ndarray) -> np.ndarray:
            drawn = rng.beta(*rates.posterior(candidates))
            weights = np.maximum(self._floor, drawn * (1 - drawn)) ** self._exponent
            # Where all weights are 0, which takes a floor of 0 and rates of 0 or 1, any will do.
            ends = np.cumsum(weights + np.finfo(float).tiny, axis=1)
            picked = np.sum(rng.random((len(ends), 1)) * ends[:, -1:] >= ends, axis=1)
            return np.minimum(picked, ends.shape[1] - 1)

        return self._candidates.choose(prompts, rates, rng, count, pick)

    def state(self) -> dict[str, Any]:
        return self._candidates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._candidates.restore(state)
