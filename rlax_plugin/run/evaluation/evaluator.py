"""Generates and scores sets of held-out problems on the workers, at one weight version."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import RlaxSection
from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.run.evaluation.measures import Outcomes, measures, passed_counts
from rlax_plugin.run.evaluation.problems import Answered, ProblemSet
from rlax_plugin.run.evaluation.result import Evaluated

Progress = Callable[[int, int], None]


class Evaluator:
    """Generates and scores problem sets at one weight version."""

    def __init__(
        self, section: RlaxSection, dispatcher: Dispatcher, sets: Sequence[ProblemSet]
    ) -> None:
        self._section, self._dispatcher, self.sets = section, dispatcher, sets

    @property
    def problems(self) -> int:
        """Number of problems in all sets."""
        return sum(len(one.prompts) for one in self.sets)

    @property
    def samples(self) -> int:
        """Number of samples of all problems."""
        return sum(len(one.prompts) * one.samples for one in self.sets)

    async def run(
        self, version: int, progress: Progress = lambda done, of: None, *, pinned: bool = False
    ) -> Evaluated:
        """Measures all sets concurrently.

        A sample whose reward failed counts as not passed; ``reward_errors`` is the share of them.

        Args:
          version: version to generate with, or the minimum version unless ``pinned``.
          progress: called with the number of finished groups and of all groups.
          pinned: generates with exactly this version, on the workers that are pinned to it.

        Raises:
          RlaxError: a group cannot be generated.
        """
        exactly = version if pinned else None
        reached(FaultPoint.EVALUATION_BEGUN)
        done = 0

        async def one(problems: ProblemSet, prompt: Prompt, number: int) -> Answered:
            nonlocal done
            found = await self.answered(problems, prompt, number, version, exactly)
            done += 1
            progress(done, self.problems)
            return found

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
        threshold = self._section.curation.pass_threshold
        passed = {name: passed_counts(one.rewards_bn, threshold) for name, one in outcomes.items()}
        return Evaluated(version, found, failures_of(of_sets), passed)

    async def answered(
        self,
        problems: ProblemSet,
        prompt: Prompt,
        number: int,
        version: int,
        exactly: int | None = None,
    ) -> Answered:
        """Generates and scores the samples of one problem.

        Args:
          number: number of the problem, unique among those that are generated at the same time.
          version, exactly: versions of the weights, see ``Request``.

        Raises:
          RlaxError: the problem cannot be generated.
        """
        episodes = problems.episodes
        request = problems.request(
            episodes.environment.context(prompt),
            prompt,
            number,
            self._section.seed,
            version,
            exactly,
        )
        trusted = False
        while not trusted:
            found = await episodes.run(
                prompt,
                await episodes.answered(request),  # held here, it could not be dropped
                problems.rewards,
                functools.partial(problems.seed, self._section.seed, prompt),
                source=problems.source,
            )
            trusted = all(worker.trusted for worker in found.workers)
        # Group by group: reading all answers at once would hold up heartbeats.
        texts = [episode.text for episode in found.episodes]
        votes = self._section.evaluation.majority_k
        answers = problems.answers(texts) if votes else [None] * len(texts)
        return Answered.of(found.episodes, found.scores, answers)

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


def failures_of(of_sets: Mapping[str, Sequence[Answered]]) -> dict[str, str]:
    """Returns the reason of the first failed reward of each set that has one."""
    found: dict[str, str] = {}
    for name, answered in of_sets.items():
        for one in answered:
            if one.failure is not None:
                found.setdefault(name, one.failure)
    return found
