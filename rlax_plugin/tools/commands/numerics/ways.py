"""The ways in which an engine generates: alone, in company, behind kept contexts, and others.

Every way is a set of ``Request`` of which the engine's own code path makes samples, so it is as
true of any engine. What an engine does not declare is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.types import (
    Episode,
    Key,
    Prompt,
    Request,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
    Trajectory,
    Turn,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.tools.commands.numerics.gaps import KEPT, KEPT_UPDATED, UPDATED

PREFILL, ALONE, COMPANY = "prefill", "alone", "in company"
SHARED, RESUMED = "shared prompt", "continued samples"

_TOKENS = 128  # sampled at most by all but the longest sample
_TOGETHER = 8  # samples in company
_SEEDS = 4  # of every length of a prefill
_TURNS = 4
_EPISODES = 2


@dataclass(frozen=True, slots=True)
class Generated:
    """A request's answer.

    Attributes:
      way: in which it was generated.
      group: its samples as a group of a batch, so that the trainer lays them out as it would.
    """

    way: str
    group: ScoredGroup


class Contexts:
    """Contexts of any length, made of the prompts of the run, one after the other.

    Raises:
      WorkerError: there are no prompts with tokens.
    """

    def __init__(self, prompts: Iterable[Prompt]):
        tokens = [np.asarray(one.tokens, np.int32) for one in itertools.islice(prompts, 512)]
        if not any(map(len, tokens)):
            raise WorkerError("there are no prompts to generate from")
        self._all = np.concatenate(tokens)
        self._starts = np.cumsum([0, *map(len, tokens)])[:-1]

    def of(self, length: int, number: int) -> np.ndarray:
        """Returns int32 [length], which begins with a prompt."""
        start = int(self._starts[number % len(self._starts)])
        return np.take(self._all, np.arange(start, start + length), mode="wrap").astype(np.int32)


def lengths(most: int) -> list[int]:
    """Returns the powers of two up to ``most``, numbers halfway between them, and ``most``."""
    powers = [1 << k for k in range(most.bit_length())]
    halfway = [one + one // 2 for one in powers]
    return sorted({one for one in (*powers, *halfway, most) if one <= most})


@dataclass
class Ways:
    """Generates in all ways with an engine that holds a version.

    Args:
      sampling: settings of the run's samples, without stop ids: every sample has all its tokens.
      says: is told which way is next.
    """

    engine: RolloutEngine
    section: RlaxSection
    contexts: Contexts
    sampling: SamplingParams
    says: Callable[[str], None]
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    # Of the group of each episode of several turns, the context of its next turn.
    _episodes: dict[int, np.ndarray] = field(default_factory=dict)

    async def fresh(self) -> list[Generated]:
        """Generates in every way with the first weights."""
        rollouts, few, prompt = self.section.rollouts, self._few, self._prompt
        lone = [
            self._request(self.contexts.of(n, n), 1, few) for n in {max(1, prompt // 2), prompt}
        ]
        found = await self._answers(PREFILL, self._prefills())
        for request in lone:
            found += await self._answers(ALONE, [request])
        company = await self._answers(COMPANY, self._company())
        seeds = min(rollouts.group_size, _TOGETHER)
        if seeds > 1:
            one = self._request(self.contexts.of(prompt, 1), seeds, few)
            found += await self._answers(SHARED, [one])
        if self.engine.capabilities.resumes and rollouts.on_new_weights == "continue":
            found += await self._answers(RESUMED, self._halves(company))
        if self.section.several_turns:
            found += await self._turns()
        return found + company

    async def updated(self) -> list[Generated]:
        """Generates after an update: the same prompts, and the next turn of the same episodes."""
        # First, before other samples take the slots that may have kept the contexts.
        turns = await self._turn(KEPT_UPDATED, _TURNS, 1) if self._episodes else []
        return await self._answers(UPDATED, self._company()) + turns

    @property
    def _longest(self) -> int:
        most = self.section.max_context_tokens
        declared = self.engine.capabilities.context_tokens
        return min(most, declared - 1) if declared else most

    @property
    def _prompt(self) -> int:
        return min(self.section.rollouts.max_prompt_tokens, self._longest)

    @property
    def _few(self) -> int:
        return min(self.section.rollouts.max_new_tokens, _TOKENS)

    def _prefills(self) -> list[Request]:
        """Samples of one token, which a prefill alone determines, at every depth."""
        return [self._request(self.contexts.of(n, n), _SEEDS, 1) for n in lengths(self._longest)]

    def _company(self) -> list[Request]:
        """Samples of different lengths at once; the longest one goes to the end of the context."""
        rollouts = self.section.rollouts
        prompt, count = self._prompt, max(1, min(rollouts.slots, _TOGETHER))
        spread = np.rint(np.geomspace(1, prompt, count)).astype(int)
        return [
            self._request(
                self.contexts.of(int(n), int(n)), 1, rollouts.max_new_tokens if last else self._few
            )
            for n, last in zip(spread, [False] * (count - 1) + [True], strict=True)
        ]

    def _halves(self, generated: Sequence[Generated]) -> list[Request]:
        """Samples that go on behind the first half of their tokens."""
        found = []
        for one in generated:
            (turn,) = one.group.episodes[0].trajectories[0].turns
            whole, half = turn.sampled, len(turn.sampled.tokens) // 2
            begun = replace(
                whole,
                tokens=whole.tokens[:half],
                logprobs=whole.logprobs[:half],
                versions=whole.versions[:half],
                side={name: array[:half] for name, array in whole.side.items()},
                finish=None,
            )
            if half:
                request = self._request(turn.given, 1, len(whole.tokens))
                found.append(replace(request, seeds=(whole.seed,), resume=(begun,)))
        return found

    async def _turns(self) -> list[Generated]:
        """Plays episodes until their contexts are full; slots may have kept what was before."""
        found: list[Generated] = []
        turns = min(self.section.episodes.max_turns, _TURNS)
        prompt, longest = self._prompt, self._longest
        # What an environment gives between answers, such that one more turn ends the context.
        given = max(1, (longest - prompt - (turns + 1) * self._few) // turns)
        for i in range(_EPISODES):
            self._episodes[next(self._numbers)] = self.contexts.of(max(1, prompt // (i + 1)), i)
        for turn in range(turns):
            answers = await self._turn(KEPT, turn, given)
            found += answers if turn else []  # the first turn is a prompt as any other
        return found

    async def _turn(self, way: str, turn: int, given: int) -> list[Generated]:
        """Generates the next turn of all episodes, and adds what comes before the one after."""
        requests = [
            replace(
                self._request(context, 1, min(self._few, self._longest + 1 - len(context))),
                key=Key("evaluate", number, 0, 0, turn) if turn else Key("evaluate", number),
            )
            for number, context in self._episodes.items()
            if len(context) <= self._longest
        ]
        answers = await self._answers(way, requests)
        for one in answers:
            (last,) = one.group.episodes[0].trajectories[0].turns
            more = self.contexts.of(given, turn)
            self._episodes[one.group.id] = np.concatenate([last.given, last.sampled.tokens, more])
        return answers

    def _request(self, context: np.ndarray, samples: int, new: int) -> Request:
        number, declared = next(self._numbers), self.engine.capabilities.context_tokens
        new = min(new, declared - len(context)) if declared else new
        return Request(
            key=Key("evaluate", number),
            attempt=1,
            context=context,
            seeds=tuple(1000 * number + i for i in range(samples)),
            sampling=replace(self.sampling, max_new_tokens=new),
            min_version=self.engine.version,
        )

    async def _answers(self, way: str, requests: Sequence[Request]) -> list[Generated]:
        """Generates all requests at once.

        Raises:
          WorkerError: the engine has not answered a request, or not as it must.
        """
        answers: dict[Key, Sequence[Sampled]] = {}

        def take(key: Key, samples: Sequence[Sampled]) -> None:
            if all(one.finish is not None for one in samples):
                answers[key] = samples

        self.says(f"generating: {way}")
        await self.engine.generate(requests, take)
        capabilities, version = self.engine.capabilities, self.engine.version
        for request in requests:
            samples = answers.get(request.key, ())
            if len(samples) != len(request.seeds):
                raise WorkerError(f"the engine has not answered {request.key} of {way}")
            found = defect(
                samples,
                request.sampling,
                capabilities.vocabulary,
                context_length=len(request.context),
                side=capabilities.side,
            )
            if others := {v for one in samples for v in one.versions.tolist()} - {version}:
                found = found or f"has tokens of version {min(others)}, not {version}"
            if found is not None:
                raise WorkerError(f"the engine's answer to {request.key} of {way}: {found}")
        return [Generated(way, self._group(one, answers[one.key])) for one in requests]

    def _group(self, request: Request, samples: Sequence[Sampled]) -> ScoredGroup:
        given = Turn(request.context, samples[0])
        episodes = tuple(
            Episode(i, (Trajectory((replace(given, sampled=one),)),))
            for i, one in enumerate(samples)
        )
        prompt = Prompt(str(request.key), request.context, "", "")
        scheduled = self.section.rollouts.only_temperature is None
        temperature = request.sampling.temperature if scheduled else None
        scores = tuple(Score(0.0) for _ in samples)
        return ScoredGroup(request.key.group, 1, prompt, episodes, scores, temperature=temperature)
