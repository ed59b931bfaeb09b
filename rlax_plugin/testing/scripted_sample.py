"""An unfinished completion of the engine ``scripted``, which grows token by token."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlax_plugin.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.testing import policy
from rlax_plugin.tokens.stopping import StopFinder
from rlax_plugin.types import EMPTY, Finish, Sampled, SamplingParams


@dataclass(slots=True)
class ScriptedSample:
    """An unfinished completion."""

    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: list[float] = field(default_factory=list)  # log-probs, where top-k or top-p cuts
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    finder: StopFinder | None = None  # where there are stop strings

    @classmethod
    def resumed(cls, sampled: Sampled, finder: StopFinder | None) -> ScriptedSample:
        """Continues after the tokens that another worker has generated."""
        if finder is not None and len(sampled.tokens):
            finder.find(sampled.tokens)
        return cls(
            sampled.seed,
            sampled.tokens.tolist(),
            sampled.logprobs.tolist(),
            sampled.side.get(TRUNCATED_LOGPROBS, sampled.logprobs).tolist(),
            sampled.versions.tolist(),
            sampled.finish,
            finder,
        )

    @property
    def unfinished(self) -> bool:
        return self.finish is None

    def sample_token(
        self,
        logprobs_v: np.ndarray,
        version: int,
        sampling: SamplingParams,
        uniform: float | None = None,
    ) -> None:
        """Adds a token, given the log-probs [vocabulary] of the possible next tokens.

        Args:
          uniform: a random number in [0, 1); None: the number of the sample's seed.
        """
        if uniform is None:
            uniform = policy.uniform(self.seed, len(self.tokens))
        token, full, truncated = policy.choose(logprobs_v, uniform, sampling)
        self.tokens.append(token)
        self.logprobs.append(full)
        self.truncated.append(truncated)
        self.versions.append(version)
        told = self.finder is not None and self.finder.find(np.array([token], np.int32))
        if token in sampling.stop_ids or told:
            self.finish = "stop"
        elif len(self.tokens) >= sampling.max_new_tokens:
            self.finish = "length"

    def sampled(self, sampling: SamplingParams) -> Sampled:
        truncated = {TRUNCATED_LOGPROBS: np.array(self.truncated, np.float32)}
        return Sampled(
            seed=self.seed,
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            finish=self.finish,
            side=truncated if sampling.truncates else EMPTY,
        )
