"""The problems of an evaluation with what is needed to judge answers, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlax_plugin.base.types import (
    Episode,
    Key,
    Prompt,
    Request,
    SamplingParams,
    Score,
    Unscored,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.of_run import AskedSet
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.requests import sample_seed, sampling_params
from rlax_plugin.run.evaluation.measures import Outcomes


@dataclass(frozen=True, slots=True)
class Answered:
    """The figures kept of one problem: a few numbers per sample, regardless of its length.

    Attributes:
      rewards_n: float64; NaN where scoring failed.
      lengths_n: completion tokens, stop included.
      truncated_n: bool, True if a completion was cut at the maximum number of tokens.
      votes: of each sample, the first sample of the problem with the same answer; None if it gives
        no answer.
      failure: the ending and the reason of the first failed reward; None if all succeeded.
    """

    rewards_n: np.ndarray
    lengths_n: np.ndarray
    truncated_n: np.ndarray
    votes: Sequence[int | None]
    failure: str | None

    @classmethod
    def of(
        cls,
        episodes: Sequence[Episode],
        scores: Sequence[Score | Unscored],
        answers: Sequence[str | None],
    ) -> Answered:
        first: dict[str, int] = {}
        rewards = [s.total if isinstance(s, Score) else np.nan for s in scores]
        return cls(
            rewards_n=np.array(rewards, np.float64),
            lengths_n=np.array([episode.tokens for episode in episodes]),
            truncated_n=np.array([episode.truncated for episode in episodes]),
            votes=[None if a is None else first.setdefault(a, i) for i, a in enumerate(answers)],
            failure=next((s.shown for s in scores if isinstance(s, Unscored)), None),
        )


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems with all that is needed to generate and score their samples.

    Attributes:
      purpose: distinguishes its seeds from those of other sets and of training.
      samples: number of samples per problem.
      rewards: score the samples.
      episodes: plays the episodes.
    """

    name: str
    purpose: str
    source: PromptSource
    prompts: Sequence[Prompt]
    samples: int
    sampling: SamplingParams
    rewards: RewardPool
    episodes: EpisodeRunner

    def seed(
        self, run_seed: int, prompt: Prompt, sample: int, trajectory: int = 0, turn: int = 0
    ) -> int:
        """Returns a seed that is the same in every evaluation, so only the weights differ."""
        return sample_seed(run_seed, self.purpose, prompt.id, sample, trajectory, turn)

    def request(
        self,
        context: np.ndarray,
        prompt: Prompt,
        number: int,
        run_seed: int,
        version: int,
        exactly: int | None = None,
    ) -> Request:
        """Returns the request that generates the samples of a problem.

        Args:
          context: int32 [length], tokens of the prompt.
          number: number of the problem among those of the evaluation.
          version, exactly: versions of the weights, see ``Request``.
        """
        seeds = tuple(self.seed(run_seed, prompt, index) for index in range(self.samples))
        key = Key("evaluate", number)
        return Request(key, 1, context, seeds, self.sampling, version, exactly=exactly)

    def answers(self, completions: Iterable[str]) -> list[str | None]:
        """Returns the answers that vote in majority@k, as the prompt source reads them."""
        return [self.source.answer(completion) for completion in completions]

    def outcomes(self, answered: Sequence[Answered]) -> Outcomes:
        """Returns the outcomes of the problems, whose groups are given in their order."""
        return Outcomes(
            rewards_bn=np.array([one.rewards_n for one in answered]),
            lengths_bn=np.array([one.lengths_n for one in answered]),
            truncated_bn=np.array([one.truncated_n for one in answered]),
            answers_bn=[one.votes for one in answered],
        )


def problem_sets(
    section: RlaxSection,
    asked: Sequence[AskedSet],
    rewards: Mapping[str, RewardPool],
    rewards_of: Mapping[str, RewardPool],
    episodes: Mapping[str, EpisodeRunner],
) -> tuple[ProblemSet, ...]:
    """Returns the problem sets with the rewards that score them.

    Args:
      rewards: environment -> its rewards of training; "" if there is one.
      rewards_of: set -> its own rewards, for sets that have some.
      episodes: environment -> what plays its episodes.
    """
    return tuple(
        ProblemSet(
            name=one.name,
            purpose=f"eval/{one.name}",  # the main set is called by its split
            source=one.source,
            prompts=one.prompts,
            samples=one.chosen.samples or 1,
            sampling=_sampling(section.of_environment(one.environment), one.source),
            rewards=rewards_of.get(one.name) or rewards[one.environment],
            episodes=episodes[one.environment],
        )
        for one in asked
    )


def _sampling(section: RlaxSection, source: PromptSource) -> SamplingParams:
    sampling, temperature = sampling_params(section, source), section.evaluation.temperature
    return sampling if temperature is None else replace(sampling, temperature=temperature)
