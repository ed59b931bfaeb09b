"""The sampler ``learnability``, which weights prompts by p (1 - p), and its random candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_curation.shuffled import domains_of
from rlax_plugin.api import Domains, PassRates, PositiveInt, Prompt, Sampler, Section


class CandidatesConfig(Section):
    """Options of the samplers that pick one of several random prompts."""

    candidates: Annotated[PositiveInt, Field(le=256)] = Field(
        default=8, description="number of random prompts from which one is chosen"
    )


class Candidates:
    """Samples the random prompts of which a sampler picks one.

    If prompts have domains, all candidates are of one domain, which is sampled by its weight.
    """

    def __init__(self, config: CandidatesConfig) -> None:
        self._each = config.candidates
        self._domains: Domains | None = None
        self._places: list[np.ndarray] = []  # of the prompts of each domain

    def sample(self, prompts: Sequence[Prompt], rng: np.random.Generator, count: int) -> np.ndarray:
        """Returns int64 [count, candidates], indices of prompts."""
        size, domains = (count, self._each), domains_of(prompts)
        if domains is None:
            return rng.integers(len(prompts), size=size)
        if domains is not self._domains:
            self._domains, self._places = domains, domains.places()
        numbers = rng.choice(len(domains.names), size=count, p=domains.weights)
        chosen = [rng.choice(self._places[number], size=size[1]) for number in numbers]
        return np.array(chosen, np.int64).reshape(size)


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
    chosen again when the policy has moved so far that they may have changed.
    """

    def __init__(self, config: LearnabilityConfig) -> None:
        self._config, self._candidates = config, Candidates(config)

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        candidates = self._candidates.sample(prompts, rng, count)
        drawn = rng.beta(*rates.posterior(candidates))
        weights = np.maximum(self._config.floor, drawn * (1 - drawn)) ** self._config.exponent
        # Where all weights are 0, which takes a floor of 0 and rates of 0 or 1, any will do.
        ends = np.cumsum(weights + np.finfo(float).tiny, axis=1)
        picked = np.sum(rng.random((len(ends), 1)) * ends[:, -1:] >= ends, axis=1)
        picked = np.minimum(picked, ends.shape[1] - 1)
        return candidates[np.arange(count), picked].tolist()

    def state(self) -> dict[str, Any]:
        """Returns {}: the choices depend on the pass rates and the random numbers alone."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Does nothing, see ``state``."""
