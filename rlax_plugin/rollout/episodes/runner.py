"""Plays and scores the episodes of a group, from its first answers on or from nothing."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import (
    EMPTY,
    Episode,
    Key,
    Prompt,
    Request,
    Sampled,
    Score,
    Turn,
    Unscored,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.environment import Environment, Outcome
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.episodes.playing import NoLog, Playing, TurnLog
from rlax_plugin.rollout.fleet.dispatch import MAX_ATTEMPTS, Dispatcher
from rlax_plugin.rollout.fleet.fleet import Worker
from rlax_plugin.rollout.fleet.requests import single_turn
from rlax_plugin.rollout.fleet.tickets import Completed, tokens, trusted

# Attempt numbers of later turns. Each asking has its own, with room for the attempts that the
# dispatcher makes of it: an episode that is played once more asks for the same turns, while workers
# may yet be told to give up those of the first time. They are int32 on the wire.
_ATTEMPTS = range(1, 2**31 - MAX_ATTEMPTS, MAX_ATTEMPTS + 1)

_MOST_AT_ONCE = 2048  # tokens of a group that become text on the event loop: about a millisecond

SeedOf = Callable[[int, int, int], int]
"""Maps (sample, trajectory, turn) to its 64-bit seed."""


class ScoredEpisodes(NamedTuple):
    """The episodes of a group, in order.

    Attributes:
      workers: all workers that generated a part of any episode, including lost ones.
      reward_s: seconds that scoring took.
    """

    episodes: tuple[Episode, ...]
    scores: tuple[Score | Unscored, ...]
    workers: tuple[Worker, ...]
    reward_s: float


def check_environment(section: RlaxSection, environment: Environment) -> None:
    """Checks that a config may use the environment that it names.

    Raises:
      ConfigError: ``rlax.deterministic`` is set, and the environment is not deterministic.
    """
    if section.deterministic and not environment.deterministic:
        reason = "must be deterministic with rlax.deterministic, and does not say that it is"
        raise ConfigError("rlax.environment", section.environment.name, reason)


class EpisodeRunner:
    """Turns the first answers to a prompt, or the prompt alone, into scored episodes.

    Args:
      environment: the environment chosen by ``rlax.environment``.
      dispatcher: requests the generation of turns.

    Raises:
      ConfigError: see ``check_environment``.
    """

    def __init__(
        self,
        section: RlaxSection,
        source: PromptSource,
        environment: Environment,
        dispatcher: Dispatcher,
    ):
        check_environment(section, environment)
        self._section, self._source = section, source
        self.environment, self._dispatcher = environment, dispatcher
        self._attempts = itertools.cycle(_ATTEMPTS)

    @property
    def several_turns(self) -> bool:
        """True if the environment may continue after the first answer."""
        return self._section.several_turns

    @property
    def begins(self) -> Literal["prompt", "play"]:
        """See ``Environment.begins``."""
        return self.environment.begins if self._section.several_turns else "prompt"

    async def answered(self, request: Request, expected_tokens: float = 0.0) -> Completed:
        """Requests the first answers of a group; none if its episodes begin with ``play``."""
        if self.begins == "play":
            return Completed(request, (), ())
        return await self._dispatcher.submit(request, expected_tokens)

    async def run(
        self,
        prompt: Prompt,
        completed: Completed,
        pool: RewardPool,
        seed_of: SeedOf,
        *,
        source: PromptSource | None = None,
        log: TurnLog | None = None,
        first: int = 0,
        step: int | None = None,
    ) -> ScoredEpisodes:
        """Plays the episodes of a group concurrently, and scores them.

        If the environment fails in an episode, only that episode has no score.

        Args:
          completed: the group's request with its samples, see ``answered``.
          pool: the pool whose processes play and score.
          source: source of the prompt; None: that of training.
          log: records turns. None: the episodes are not used for training, and data that only
            training needs is dropped, which would take gigabytes in a long evaluation.
          first: index of the first sample within its group; 0 if there may be several turns.
          step: see ``RewardPool.score``.

        Raises:
          RlaxError: a turn cannot be generated, or no process can be started.
          VoidTurns: the log reports that the group will not be used for training.
        """
        source = source or self._source
        if log is None:
            kept = _shown if self._section.several_turns else _light
            completed = completed._replace(samples=tuple(map(kept, completed.samples)))
        if not self._section.several_turns:
            made = source, completed.request.context, completed.samples, first
            if tokens(completed.samples) > _MOST_AT_ONCE:
                episodes = await asyncio.to_thread(single_turn, *made)
            else:
                episodes = single_turn(*made)
            began_s = time.perf_counter()
            scores = tuple(await pool.score(prompt, episodes, step=step))
            took_s = time.perf_counter() - began_s
            return ScoredEpisodes(episodes, scores, completed.workers, took_s)
        return await _Group(self, prompt, completed, pool, seed_of, source, log, step).run()

    @property
    def vocabulary(self) -> int:
        """The vocabulary size; see ``Dispatcher``."""
        return self._dispatcher.vocabulary

    async def ask(self, request: Request) -> Completed:
        """Requests the generation of a later turn; the attempt is numbered here."""
        numbered = replace(request, attempt=next(self._attempts))
        return await self._dispatcher.submit(numbered)


class _Group:
    """The episodes of one group while they are played."""

    def __init__(
        self,
        runner: EpisodeRunner,
        prompt: Prompt,
        completed: Completed,
        pool: RewardPool,
        seed_of: SeedOf,
        source: PromptSource,
        log: TurnLog | None,
        step: int | None,
    ):
        self._runner, self._prompt, self._pool = runner, prompt, pool
        self._first, self._seed_of, self._step = completed.request, seed_of, step
        self._section, self._source = runner._section, source
        self._trains, self._log = log is not None, log or NoLog()
        self._samples: Sequence[Sampled | None] = completed.samples
        if runner.begins == "play":
            self._samples = [None] * len(self._first.seeds)
        self._workers = dict.fromkeys(completed.workers)

    async def run(self) -> ScoredEpisodes:
        known = self._log.turns_of(self._first.key.group)
        playing = [
            self._playing(index, sampled, [one for one in known if one[0].sample == index])
            for index, sampled in enumerate(self._samples)
        ]
        tasks = [
            asyncio.ensure_future(self._pool.play(self._prompt, episode)) for episode in playing
        ]
        try:
            group = self._first.key.group
            outcomes = await self._log.unless_void(group, asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
        episodes = tuple(
            episode.episode(
                outcome.text if isinstance(outcome, Outcome) else None,
                cut=not isinstance(outcome, Outcome) or outcome.ended == "cut",
            )
            for episode, outcome in zip(playing, outcomes, strict=True)
        )
        outcomes = [
            outcome if isinstance(outcome, Unscored) or one.trajectories else _WITHOUT_TURN
            for one, outcome in zip(episodes, outcomes, strict=True)
        ]
        began_s = time.perf_counter()
        scores = await self._scores(playing, episodes, outcomes)
        return ScoredEpisodes(episodes, scores, tuple(self._workers), time.perf_counter() - began_s)

    def _playing(
        self, index: int, sampled: Sampled | None, known: Sequence[tuple[Key, Turn]]
    ) -> Playing:
        key = self._first.key._replace(sample=index)
        first = None if sampled is None else Turn(self._first.context, sampled)
        return Playing(
            self._section,
            self._source,
            key,
            first,
            ask=self._ask,
            log=self._log,
            known=known,
            keep=(lambda turn: turn) if self._trains else _light_turn,
            vocabulary=self._runner.vocabulary,
        )

    async def _ask(self, key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        assert key.sample is not None
        first = self._first
        request = Request(
            key=key,
            attempt=1,
            context=context,
            seeds=(self._seed_of(key.sample, key.trajectory, key.turn),),
            sampling=replace(first.sampling, max_new_tokens=most),
            min_version=max(first.min_version, oldest, self._log.oldest),
            exactly=first.exactly,
            session=f"{key.purpose}/{key.group}/{key.sample}",
        )
        completed = await self._runner.ask(request)
        while not trusted(completed.workers):  # since a moment ago: it must not even be recorded
            completed = await self._runner.ask(request)
        self._workers |= dict.fromkeys(completed.workers)
        (sampled,) = completed.samples
        return sampled if self._trains else _shown(sampled)

    async def _scores(
        self,
        playing: Sequence[Playing],
        episodes: Sequence[Episode],
        outcomes: Sequence[Outcome | Unscored],
    ) -> tuple[Score | Unscored, ...]:
        played = [
            (episode, replace(outcome, rewards=tuple(one.of_turns(outcome.rewards))))
            if outcome.rewards
            else (episode, outcome)
            for one, episode, outcome in zip(playing, episodes, outcomes, strict=True)
            if isinstance(outcome, Outcome)
        ]
        ended = [episode for episode, _ in played]
        scores = await self._pool.score(self._prompt, ended, step=self._step)
        found = iter(
            _with_rewards(score, *pair) for score, pair in zip(scores, played, strict=True)
        )
        return tuple(
            next(found) if isinstance(outcome, Outcome) else outcome for outcome in outcomes
        )


_WITHOUT_TURN = Unscored(
    "the environment ended it without having the policy sample anything", Ending.WITHOUT_TURN
)


def _shown(sampled: Sampled) -> Sampled:
    """Returns a copy with what an environment may see: no side channels, and the last version."""
    return replace(sampled, versions=sampled.versions[-1:].copy(), side=EMPTY)


def _light(sampled: Sampled) -> Sampled:
    """Returns a copy with what is left of that once an episode that does not train is over."""
    return replace(_shown(sampled), logprobs=np.zeros(0, np.float32))


def _light_turn(turn: Turn) -> Turn:
    return replace(turn, sampled=_light(turn.sampled))


def _with_rewards(score: Score | Unscored, episode: Episode, outcome: Outcome) -> Score | Unscored:
    """Returns a score with the environment's rewards added, of turns at their last tokens.

    Args:
      outcome: the environment's outcome, with rewards in the order of the episode's rows.
    """
    says = outcome.rewards or outcome.reward or outcome.metrics or outcome.ending
    if isinstance(score, Unscored) or not says:
        return score
    metrics = dict(score.metrics)
    for name, value in outcome.metrics.items():  # added, as those of several rewards are
        metrics[name] = metrics.get(name, 0.0) + value
    paid = score.token_rewards
    if outcome.rewards:
        of_turns = [np.zeros(len(sampled.tokens)) for sampled in episode.sampled]
        for turn, reward in zip(of_turns, outcome.rewards, strict=True):
            turn[-1] = reward
        paid = tuple(
            of_turns
            if not paid
            else (one + other for one, other in zip(of_turns, paid, strict=True))
        )
    return replace(
        score,
        total=score.total + outcome.reward + sum(outcome.rewards),
        metrics=metrics,
        token_rewards=paid,
        ending=outcome.ending or score.ending,
    )
