"""The sampler ``band``: prompts whose pass rate may lie between two bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_curation.learnability import Candidates, CandidatesConfig
from rlax_plugin.api import ConfigError, PassRates, Prompt, Sampler

Rate = Annotated[float, Field(ge=0, le=1)]


class BandSamplerConfig(CandidatesConfig):
    """Chooses prompts whose pass rate may lie between two bounds.

    The first of some random candidates is chosen whose interval of probable pass rates overlaps the
    band. Prompts that were never measured count as inside; a prompt outside comes back when its
    samples are old, because the interval widens then. If no candidate qualifies, the one whose
    expected pass rate is nearest to the band is chosen, so choices outside the band are rare but
    not excluded.
    """

    low: Rate = Field(default=0.2, description="smallest pass rate of the band")
    high: Rate = Field(default=0.8, description="largest pass rate of the band")
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.9,
        description="probability of the interval, half of the rest on each side. With 0.9 a prompt "
        "is left out if its pass rate is below the band, or above it, with a probability of more "
        "than 0.95",
    )

    def check_together(self) -> None:
        if self.low > self.high:
            raise ConfigError("low", self.low, f"must not exceed high = {self.high}")


class BandSampler(Sampler):
    """Chooses the first of some random candidates whose credible interval overlaps [low, high].

    For each prompt chosen, ``candidates`` are sampled uniformly. If none of their intervals
    overlaps the band, the one with the posterior mean nearest to the band is taken.
    """

    def __init__(self, config: BandSamplerConfig) -> None:
        import scipy.special  # here: its first import takes longer than the event loop has

        self._config, self._candidates = config, Candidates(config)
        self._share_below = scipy.special.betainc  # (alpha, beta, x) -> P(rate < x)

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        low, high, most = self._config.low, self._config.high, (1 + self._config.confidence) / 2
        candidates = self._candidates.sample(prompts, rng, count)
        alpha, beta = rates.posterior(candidates)
        below = self._share_below(alpha, beta, low)
        above = self._share_below(beta, alpha, 1 - high)
        inside = (below <= most) & (above <= most) | ~rates.measured(candidates)
        mean = alpha / (alpha + beta)
        distance = np.maximum(0, np.maximum(low - mean, mean - high))
        picked = np.argmin(np.where(inside, -1.0, distance), axis=1)
        return candidates[np.arange(count), picked].tolist()

    def state(self) -> dict[str, Any]:
        """Returns {}: the choices depend on the pass rates and the random numbers alone."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Does nothing, see ``state``."""
