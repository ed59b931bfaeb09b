"""One group's trip: it is generated, scored, and judged by the filters."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Sequence

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.guard import KeptGuard
from rlax_plugin.controller.observers import Observers
from rlax_plugin.controller.refill import ALL_FAILED
from rlax_plugin.controller.run_history import RunHistory
from rlax_plugin.controller.run_state import Open
from rlax_plugin.controller.savings import Savings
from rlax_plugin.controller.screening import Screening, joined
from rlax_plugin.controller.turns import QUARANTINED, Turns, generated
from rlax_plugin.episodes.playing import VoidTurns
from rlax_plugin.episodes.runner import EpisodeRunner, Scored
from rlax_plugin.ports.curation import Filter
from rlax_plugin.records import events as ev
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.dispatch import Dispatcher
from rlax_plugin.rollouts.reissuing import Reissuing
from rlax_plugin.rollouts.requests import sample_seed
from rlax_plugin.rollouts.tickets import Completed, GivenUp, trusted
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Key, Rejected, Request, ScoredGroup, Turn

NOT_NEEDED = "no longer needed"
"""The reason of a group that is not generated to its end: batches were filled without it."""


class Trips:
    """Takes groups from their request to their event ``Scored``.

    Args:
      turns: records those of episodes under way.
      reissuing: makes the next attempt, where a worker's samples turn out to be void.
      observers: are told of each scored group.
      guard: ends the run if too few groups are accepted.
    """

    def __init__(
        self,
        section: RlaxSection,
        filters: Sequence[Filter],
        *,
        dispatcher: Dispatcher,
        episodes: EpisodeRunner,
        rewards: RewardPool,
        history: RunHistory,
        turns: Turns,
        reissuing: Reissuing,
        observers: Observers,
        guard: KeptGuard,
    ):
        self._section, self._filters = section, filters
        self._dispatcher, self._episodes, self._rewards = dispatcher, episodes, rewards
        self._history, self._turns = history, turns
        self._reissuing, self._observers, self._guard = reissuing, observers, guard
        self._waiting: dict[int, asyncio.Future[None]] = {}  # groups that wait to be judged
        self._screening, self._savings = Screening(section), Savings()
        self._oldest = 0  # version that can still train

    async def run(self, request: Request) -> None:
        """Returns once the group is judged, or given up by its worker because it is too old.

        Call ``next_turn`` when what follows is done, too.

        Raises:
          RlaxError: it cannot be generated, a deadline has passed, or the guard ends the run.
        """
        group = request.key.group
        try:
            self._judge(*await self._scored(request, self._history.open[group]))
        except GivenUp as given_up:
            self._turns.forget(group)
            saved = self._savings.tokens(given_up.tokens)
            self._history.note(ev.Dropped(group, NOT_NEEDED, len(given_up.tokens), saved))

    def end_older(self, version: int) -> None:
        """Ends the generation of groups that were begun with weights older than a version.

        Of those with several turns, the ones whose first turns are recorded begin anew; others, for
        which the batches so far had no use, are dropped.
        """
        self._oldest = version
        if self._history.open:
            self._turns.drop_older(version)
            self._dispatcher.give_up_older(version)

    async def _scored(self, whole: Request, asked: Open) -> tuple[ScoredGroup, str | None]:
        """The group, and why it was screened out."""
        group = whole.key.group
        while True:
            try:
                request, scored, screened = await self._in_phases(whole, asked)
            except VoidTurns:
                whole = self._again(whole)
                continue
            if self._section.deterministic:
                await self._my_turn(group)
            if not self._turns.void(group) and trusted(scored.workers):
                break
            whole = self._again(dataclasses.replace(request, seeds=whole.seeds))
        self._turns.forget(group)
        scored_group = ScoredGroup(
            id=group,
            attempt=request.attempt,
            prompt=asked.prompt,
            episodes=scored.episodes,
            scores=scored.scores,
            pass_rate_before=self._history.run_state.rates.rate(asked.index),
        )
        return scored_group, screened

    async def _in_phases(self, whole: Request, asked: Open) -> tuple[Request, Scored, str | None]:
        """The samples of a group, as they were answered, and why those are not all.

        First samples that become too old to train still count, and tell of their prompt.

        Raises:
          VoidTurns: see ``EpisodeRunner``.
        """
        request, scored = await self._played(self._screening.first(whole), asked)
        if screened := self._screening.rejects(asked, scored.scores):
            return request, scored, screened
        if others := whole.seeds[len(scored.episodes) :]:
            reached(FaultPoint.PILOTS_SCORED)
            if min(s.versions.min() for e in scored.episodes for s in e.sampled) < self._oldest:
                return request, scored, NOT_NEEDED
            more = dataclasses.replace(request, seeds=others, resume=())
            try:
                request, rest = await self._played(more, asked, first=len(scored.episodes))
            except GivenUp:
                return request, scored, NOT_NEEDED
            scored = joined(scored, rest)
        return request, scored, None

    async def _played(
        self, request: Request, asked: Open, *, first: int = 0
    ) -> tuple[Request, Scored]:
        completed = await self._first_turns(request)
        seed_of = functools.partial(sample_seed, self._section.seed, "train", request.key.group)
        scored = await self._episodes.run(
            asked.prompt, completed, self._rewards, seed_of, log=self._turns, first=first
        )
        stats = self._history.stats
        stats.last_generated_s = time.perf_counter() - scored.reward_s
        stats.reward_s += scored.reward_s
        return completed.request, scored

    def _again(self, request: Request) -> Request:
        """The next attempt at a group; none of its samples are kept: a part of them is void."""
        group = request.key.group
        recorded = self._turns.void(group)
        attempt = self._history.open[group].attempt if recorded else request.attempt + 1
        again = dataclasses.replace(request, attempt=attempt, resume=())
        again = self._reissuing.refreshed(again)
        if not recorded:
            self._reissuing.reissued(again, QUARANTINED)
        self._turns.forget(group)
        return again

    async def _first_turns(self, request: Request) -> Completed:
        """The answers to the prompt; those of an earlier process if it has recorded them."""
        if not self._section.several_turns:
            return await self._dispatcher.submit(request)
        group, samples = request.key.group, len(request.seeds)
        if (known := self._turns.first_turns(group, samples)) is not None:
            given = dataclasses.replace(request, context=known[0].given)
            return Completed(given, tuple(turn.sampled for turn in known), ())
        self._turns.forget(group)
        completed = await self._dispatcher.submit(request)
        while not trusted(completed.workers):  # since a moment ago: it must not even be recorded
            completed = await self._dispatcher.submit(self._again(completed.request))
        turns = [Turn(completed.request.context, sampled) for sampled in completed.samples]
        self._turns.first_sampled(completed.request.key, turns)
        return completed

    async def _my_turn(self, group_id: int) -> None:
        """Deterministic mode: groups are judged in issue order, whichever is generated first."""
        if group_id != min(self._history.open):
            turn = self._waiting[group_id] = asyncio.get_running_loop().create_future()
            await turn  # no longer than the older groups take, each of which has its deadlines

    def next_turn(self) -> None:
        """Lets the oldest open group be judged, if it waits for that."""
        turn = self._waiting.pop(min(self._history.open, default=-1), None)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _judge(self, group: ScoredGroup, screened: str | None) -> None:
        self._savings.observe(group)
        rewards = group.rewards
        valid = ~np.isnan(rewards)
        reasons = (one_line(why, 200) for one in self._filters if (why := one.reject(group)))
        rejected = (screened or next(reasons, None)) if valid.any() else ALL_FAILED
        if not self._section.several_turns:  # of others each turn is recorded when it is sampled
            key = Key("train", group.id)
            self._history.note(generated(key, group.attempt, tuple(group.sampled)))
        passed = int(np.sum(rewards[valid] >= self._section.curation.pass_threshold))
        event = ev.Scored(group.id, passed, int(valid.sum()), rejected)
        self._history.score(event, group if rejected is None else Rejected(group, rejected))
        self._observers.notify("group_scored", group=group, rejected=rejected)
        if screened != NOT_NEEDED:
            self._guard.scored(rejected)
