"""The sets of problems that an evaluation asks, and what is kept of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlax_plugin.config import Choice, EvaluationSet, RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.evaluation.measures import Outcomes
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.ports.source_abilities import AnswerReader
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.requests import (
    checked_prompts,
    read_prompts,
    sample_seed,
    sampling_params,
    stop_strings_of,
    training_prompts,
)
from rlax_plugin.types import Episode, Key, Prompt, Request, SamplingParams, Score, Unscored

Part = Callable[[str, Choice, str], Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """What is kept of one problem: a few numbers per sample, however long its completions are.

    Attributes:
      rewards_n: float64; NaN where scoring failed.
      lengths_n: completion tokens, stop included.
      truncated_n: bool, whether it was cut at the most tokens allowed.
      votes: the first sample of the problem that gives the same answer; None where it gives none.
      failure: why the first of its rewards that failed did; None if all succeeded.
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
            failure=next((s.reason for s in scores if isinstance(s, Unscored)), None),
        )


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems, and what is needed to ask and to judge them.

    Attributes:
      purpose: tells its seeds from those of other sets and of training.
      samples: per problem.
    """

    name: str
    purpose: str
    source: PromptSource
    prompts: Sequence[Prompt]
    samples: int
    sampling: SamplingParams
    rewards: RewardPool

    def seed(
        self, run_seed: int, prompt: Prompt, sample: int, trajectory: int = 0, turn: int = 0
    ) -> int:
        """The same every time: before and after differ by the weights alone."""
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
        """Asks a problem.

        Args:
          context: int32 [length], what is asked.
          number: of the problem among those of the evaluation.
          version, exactly: of the weights, see ``Request``.
        """
        seeds = tuple(self.seed(run_seed, prompt, index) for index in range(self.samples))
        key = Key("evaluate", number)
        return Request(key, 1, context, seeds, self.sampling, version, exactly=exactly)

    def answers(self, completions: Iterable[str]) -> list[str | None]:
        """What votes in majority@k: the source's reading of completions, if it reads them."""
        read = self.source.answer if isinstance(self.source, AnswerReader) else str.strip
        return [read(completion) for completion in completions]

    def outcomes(self, answered: Sequence[Answered]) -> Outcomes:
        """What came of the problems, whose groups are given in their order."""
        return Outcomes(
            rewards_bn=np.array([one.rewards_n for one in answered]),
            lengths_bn=np.array([one.lengths_n for one in answered]),
            truncated_bn=np.array([one.truncated_n for one in answered]),
            answers_bn=[one.votes for one in answered],
        )


@dataclass(frozen=True, slots=True)
class AskedSet:
    """A set of ``rlax.evaluation`` and what it asks.

    Attributes:
      chosen: its settings, filled in.
      prompts: as many as are asked.
    """

    name: str
    chosen: EvaluationSet
    source: PromptSource
    prompts: Sequence[Prompt]


def asked_sets(section: RlaxSection, source: PromptSource, part: Part) -> list[AskedSet]:
    """The sets of ``rlax.evaluation``, the main one first; none if evaluation is off.

    Args:
      source: of training.
      part: builds a part of the config.

    Raises:
      ConfigError: a set has no problems, or some that the workers cannot take.
    """
    settings = section.evaluation
    found: list[AskedSet] = []
    for name, chosen in settings.all_sets().items() if settings.problems else ():
        key = f"rlax.evaluation.sets.{name}" if found else "rlax.evaluation"
        its_source = source
        if chosen.prompt_source is not None:
            its_source = part("prompt_source", chosen.prompt_source, f"{key}.prompt_source")
            _check_source(section, its_source, source, chosen.prompt_source.name, key)
        prompts = _prompts(section, its_source, chosen, key)
        found.append(AskedSet(name, chosen, its_source, prompts))
    return found


@dataclass(frozen=True, slots=True)
class RunPrompts:
    """All prompts of a run, read and checked.

    Attributes:
      train: training prompts; () where nothing is trained.
      asked: the sets of its evaluations.
    """

    source: PromptSource
    train: Sequence[Prompt]
    asked: Sequence[AskedSet]

    @classmethod
    def read(
        cls,
        section: RlaxSection,
        part: Part,
        *,
        trains: bool = True,
        note: Callable[[str], object] = lambda text: None,
    ) -> RunPrompts:
        """Reads them; blocking, and perhaps for minutes.

        Args:
          note: see ``training_prompts``.

        Raises:
          RlaxError: see ``training_prompts`` and ``asked_sets``.
        """
        key = "rlax.prompt_source"
        source: PromptSource = part("prompt_source", section.prompt_source, key)
        train = training_prompts(section, source, note=note) if trains else ()
        return cls(source, train, asked_sets(section, source, part))


def problem_sets(
    section: RlaxSection,
    asked: Sequence[AskedSet],
    rewards: RewardPool,
    rewards_of: Mapping[str, RewardPool],
) -> tuple[ProblemSet, ...]:
    """Sets with all that is needed to ask and to judge them.

    Args:
      rewards: of training.
      rewards_of: set -> its own, where it has some.
    """
    return tuple(
        ProblemSet(
            name=one.name,
            purpose=f"eval/{one.name}",  # the main set is called by its split
            source=one.source,
            prompts=one.prompts,
            samples=one.chosen.samples or 1,
            sampling=_sampling(section, one.source),
            rewards=rewards_of.get(one.name, rewards),
        )
        for one in asked
    )


def _sampling(section: RlaxSection, source: PromptSource) -> SamplingParams:
    sampling, temperature = sampling_params(section, source), section.evaluation.temperature
    return sampling if temperature is None else replace(sampling, temperature=temperature)


def _check_source(
    section: RlaxSection, its: PromptSource, training: PromptSource, name: str, key: str
) -> None:
    if not section.rollouts.ignore_stop and set(its.stop_ids) != set(training.stop_ids):
        raise ConfigError(
            f"{key}.prompt_source",
            name,
            f"has stop ids {list(its.stop_ids)}, but must have those of rlax.prompt_source, "
            f"{list(training.stop_ids)}, with which the policy has learned to end",
        )
    ours, theirs = set(stop_strings_of(its)), set(stop_strings_of(training))
    if not section.rollouts.ignore_stop and ours != theirs:
        raise ConfigError(
            f"{key}.prompt_source",
            name,
            f"has stop strings {sorted(ours)}, but must have those of rlax.prompt_source, "
            f"{sorted(theirs)}, with which the policy has learned to end",
        )


def first_of(prompts: Sequence[Prompt], count: int | None) -> Sequence[Prompt]:
    if isinstance(prompts, PromptTable):
        return prompts.read(prompts.first(len(prompts) if count is None else count))
    return prompts[:count]


def _prompts(
    section: RlaxSection, source: PromptSource, chosen: EvaluationSet, key: str
) -> Sequence[Prompt]:
    try:
        split = chosen.split or ""
        prompts = first_of(read_prompts(source, split, f"{key}.split", split), chosen.problems)
    except ConfigError as error:
        if error.value == chosen.split:  # a source does not know which key asks for the split
            raise ConfigError(f"{key}.split", chosen.split, error.reason) from None
        if chosen.prompt_source is not None and error.key.startswith("rlax.prompt_source"):
            own = f"{key}{error.key.removeprefix('rlax')}"
            raise ConfigError(own, error.value, error.reason) from None
        raise
    if not prompts:
        raise ConfigError(f"{key}.split", chosen.split, "has no problems: choose another split")
    longest, most = max(len(p.tokens) for p in prompts), section.rollouts.max_prompt_tokens
    if longest > most:
        raise ConfigError(
            "rlax.rollouts.max_prompt_tokens",
            most,
            f"must be at least {longest}, the longest prompt of {key} (split {chosen.split})",
        )
    owner = f"{'rlax' if chosen.prompt_source is None else key}.prompt_source"
    name = (chosen.prompt_source or section.prompt_source).name
    return checked_prompts(prompts, chosen.split or "", owner, name)
