"""Held-out evaluation through the workers: n samples for each problem of every set, measured."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.config import Choice, EvaluationSet, RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.evaluation.statistics import Outcomes, measures
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.dispatch import Dispatcher
from rlax_plugin.rollouts.fleet import Worker
from rlax_plugin.rollouts.requests import (
    checked_prompts,
    decoded,
    read_prompts,
    sample_seed,
    sampling_params,
)
from rlax_plugin.types import GroupRequest, Prompt, Rollout, SamplingParams

Part = Callable[[str, Choice, str], Any]
Progress = Callable[[int, int], None]

_PER_TOKEN = ("tokens", "logprob_full", "logprob_sampled", "versions")
_NOTHING = np.zeros(0, np.int32)


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
        cls, rollouts: Sequence[Rollout], lengths: Sequence[int], answers: Sequence[str | None]
    ) -> Answered:
        """Args:
        lengths: of the completions, whose tokens the rollouts need not have any more.
        """
        first: dict[str, int] = {}
        rewards = [np.nan if r.reward is None else r.reward for r in rollouts]
        return cls(
            rewards_n=np.array(rewards, np.float64),
            lengths_n=np.array(lengths),
            truncated_n=np.array([r.finish_reason == "length" for r in rollouts]),
            votes=[None if a is None else first.setdefault(a, i) for i, a in enumerate(answers)],
            failure=next((r.reward_error for r in rollouts if r.reward_error), None),
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

    def request(self, prompt: Prompt, number: int, seed: int, version: int) -> GroupRequest:
        """The same seeds every time: before and after differ by the weights alone."""
        seeds = tuple(sample_seed(seed, self.purpose, prompt.id, i) for i in range(self.samples))
        # Evaluation groups count downwards from -1: never mistaken for trained ones.
        return GroupRequest(-1 - number, 1, prompt.tokens, seeds, self.sampling, version)

    def answer(self, completion: str) -> str | None:
        """What votes in majority@k: the source's reading of a completion, if it has one."""
        read: Callable[[str], str | None] = getattr(self.source, "answer", str.strip)
        return read(completion)

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


def problem_sets(
    section: RlaxSection,
    source: PromptSource,
    part: Part,
    rewards: RewardPool,
    rewards_of: Mapping[str, RewardPool],
) -> tuple[ProblemSet, ...]:
    """``asked_sets`` with all that is needed to ask and to judge them.

    Args:
      rewards: of training.
      rewards_of: set -> its own, where it has some.

    Raises:
      ConfigError: see ``asked_sets``.
    """
    return tuple(
        ProblemSet(
            name=one.name,
            purpose=f"eval/{one.name}",  # the main set is called by its split
            source=one.source,
            prompts=one.prompts,
            samples=one.chosen.samples or 1,
            sampling=sampling_params(section, one.source),
            rewards=rewards_of.get(one.name, rewards),
        )
        for one in asked_sets(section, source, part)
    )


def _check_source(
    section: RlaxSection, its: PromptSource, training: PromptSource, name: str, key: str
) -> None:
    if not section.rollouts.ignore_stop and set(its.stop_ids) != set(training.stop_ids):
        raise ConfigError(
            f"{key}.prompt_source",
            name,
            f"has stop ids {list(its.stop_ids)}; they must be those of rlax.prompt_source, "
            f"{list(training.stop_ids)}: the policy has learned to end with them",
        )


def _prompts(
    section: RlaxSection, source: PromptSource, chosen: EvaluationSet, key: str
) -> Sequence[Prompt]:
    try:
        split = chosen.split or ""
        prompts = read_prompts(source, split, f"{key}.split", split)[: chosen.problems]
    except ConfigError as error:
        if error.value == chosen.split:  # a source does not know which key asks for the split
            raise ConfigError(f"{key}.split", chosen.split, error.reason) from None
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


class Evaluator:
    """Generates and scores problem sets at one weight version."""

    def __init__(
        self, section: RlaxSection, dispatcher: Dispatcher, sets: Sequence[ProblemSet]
    ) -> None:
        self._section, self._dispatcher, self.sets = section, dispatcher, sets

    @property
    def problems(self) -> int:
        """Of all sets together."""
        return sum(len(one.prompts) for one in self.sets)

    async def run(
        self, version: int, progress: Progress = lambda done, of: None, *, pinned: bool = False
    ) -> Evaluated:
        """Measures all sets, side by side.

        A sample whose reward failed counts as not passed; how many did is a measure of its own.

        Args:
          version: to generate with; unless ``pinned``, a newer one will do.
          progress: called with groups done and groups in all.
          pinned: generates with exactly this version, on the workers that are kept at it.

        Raises:
          RlaxError: a group cannot be generated.
        """
        exactly = version if pinned else None
        done = 0

        async def one(problems: ProblemSet, prompt: Prompt, number: int) -> Answered:
            nonlocal done
            request = problems.request(prompt, number, self._section.seed, version)
            trusted = False
            while not trusted:
                texts, lengths, workers = await self._generated(problems, request, exactly)
                rollouts = await problems.rewards.score(prompt, texts)
                trusted = all(worker.trusted for worker in workers)
            # Group by group: reading all answers at once would hold up heartbeats.
            votes = self._section.evaluation.majority_k
            answers = [problems.answer(r.text) if votes else None for r in rollouts]
            done += 1
            progress(done, self.problems)
            return Answered.of(rollouts, lengths, answers)

        asked = [(problems, prompt) for problems in self.sets for prompt in problems.prompts]
        groups = [asyncio.ensure_future(one(*what, i)) for i, what in enumerate(asked)]
        try:
            answered = iter(await asyncio.gather(*groups))
        finally:
            for group in groups:
                group.cancel()
        of_sets = {
            problems.name: [next(answered) for _ in problems.prompts] for problems in self.sets
        }
        outcomes = {
            problems.name: problems.outcomes(of_sets[problems.name]) for problems in self.sets
        }
        # On a thread: while training goes on, nobody may wait for a second of arithmetic.
        found = await asyncio.to_thread(self._measured, outcomes)
        return Evaluated(version, found, _failures(of_sets))

    async def _generated(
        self, problems: ProblemSet, request: GroupRequest, exactly: int | None
    ) -> tuple[list[Rollout], list[int], tuple[Worker, ...]]:
        """A group with its texts and without its tokens, their numbers, and who generated it.

        A long evaluation has gigabytes of tokens, log-probs and versions, and measures none.
        """
        found = await self._dispatcher.submit(request, exactly=exactly)
        texts = [
            dataclasses.replace(r, **dict.fromkeys(_PER_TOKEN, _NOTHING))
            for r in decoded(problems.source, found.rollouts)
        ]
        return texts, [len(r.tokens) for r in found.rollouts], found.workers

    def _measured(self, outcomes: Mapping[str, Outcomes]) -> dict[str, Any]:
        settings = self._section.evaluation
        return {
            name: measures(
                found,
                pass_threshold=self._section.curation.pass_threshold,
                k=settings.k,
                majority_k=settings.majority_k,
                resamples=settings.bootstrap,
                seed=self._section.seed,
            )
            for name, found in outcomes.items()
        }


def _failures(of_sets: Mapping[str, Sequence[Answered]]) -> dict[str, str]:
    """Why the first reward that failed did, of each set that has one."""
    found: dict[str, str] = {}
    for name, answered in of_sets.items():
        for one in answered:
            if one.failure is not None:
                found.setdefault(name, one.failure)
    return found
