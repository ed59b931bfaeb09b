"""One group's way through generation, scoring and the filters."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Sequence

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import Key, Prompt, Rejected, Request, ScoredGroup, Turn
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.curation import Filter
from rlax_plugin.rollout.episodes.playing import VoidTurns
from rlax_plugin.rollout.episodes.runner import EpisodeRunner, ScoredEpisodes
from rlax_plugin.rollout.fleet.dispatch import RequestRefresher
from rlax_plugin.rollout.fleet.requests import sample_seed
from rlax_plugin.rollout.fleet.tickets import Completed, GivenUp, trusted
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.controller.guidance import Guide
from rlax_plugin.run.controller.limits import ALL_FAILED, KeptGuard, failure_of
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.run.controller.screening import Ended, Savings, Screening, first_lengths, joined
from rlax_plugin.run.controller.turns import QUARANTINED, Turns, generated
from rlax_plugin.run.metrics.spans import Span
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.logged_samples import LoggedSamples
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import Open


class Trips:
    """Takes groups from their request to their event ``Scored``.

    Args:
      filters: the first one with a reason to reject a scored group rejects it.
      guard: ends the run if too few groups are accepted.
      observers: receive each scored group.
      turns: records the turns of episodes under way.
      refresher: changes the next attempt at a group whose samples turn out to be void.
      logged: has the groups, which are not generated then; None: they are.
    """

    def __init__(
        self,
        section: RlaxSection,
        generation: Generation,
        *,
        filters: Sequence[Filter],
        guard: KeptGuard,
        observers: Observers,
        history: RunHistory,
        turns: Turns,
        refresher: RequestRefresher,
        logged: LoggedSamples | None = None,
    ):
        self._section, self._filters = section, filters
        self._guard, self._observers = guard, observers
        self._dispatcher, self._parts = generation.dispatcher, generation.environments
        self._logged, self._refresher = logged, refresher
        self._scheduled = section.rollouts.only_temperature is None
        self._history, self._turns = history, turns
        self._waiting: dict[int, asyncio.Future[None]] = {}  # groups that wait to be judged
        self._screening, self._savings = Screening(section), Savings()
        self._lengths = ExpectedLengths(section, len(history.run_state.rates))
        self._guide = Guide(section, generation)
        self._oldest = 0  # version that can still train
        # Group -> the oldest version of its first samples, and the answer with its other samples.
        self._others: dict[int, tuple[int, asyncio.Future[Completed]]] = {}

    @property
    def slots_short(self) -> bool:
        """True if requests wait for slots."""
        return self._dispatcher.waits_for_slots

    def _episodes(self, prompt: Prompt) -> EpisodeRunner:
        return self._parts[self._section.environment_of(prompt.id)].episodes

    async def run(self, request: Request) -> None:
        """Returns once the group is filtered, or given up by its worker because it is too old.

        Call ``next_turn`` once its outcome is handled, too.

        Raises:
          RlaxError: it cannot be generated, a deadline has passed, or the guard ends the run.
        """
        group = request.key.group
        if self._logged is not None:
            index = self._history.open[group].index
            self._logged.check_vocabulary(index, self._dispatcher.vocabulary)
            self._judge(self._logged.group(index, group, request.attempt), None)
            return
        try:
            self._judge(*await self._scored(request, self._history.open[group]))
        except GivenUp as given_up:
            self._turns.forget(group)
            saved = self._savings.tokens(given_up.tokens)
            self._history.note(ev.Dropped(group, Ending.NOT_NEEDED, len(given_up.tokens), saved))

    def end_older(self, version: int) -> None:
        """Ends the generation of groups that were begun with weights older than a version.

        Groups with several turns start again if their first turns are recorded; all other groups
        are dropped, because the batches so far did not need them. If the first samples of a group
        are scored, its other samples are not generated, regardless of their own version.
        """
        self._oldest = version
        if self._history.open:
            self._turns.drop_older(version)
            self._dispatcher.give_up_older(version)
        for oldest, others in self._others.values():
            if oldest < version:
                others.cancel()

    async def _scored(self, whole: Request, asked: Open) -> tuple[ScoredGroup, Ended | None]:
        """Returns the group, and the reason it ended with its first samples, if it did."""
        group = whole.key.group
        while True:
            try:
                request, own, ended = await self._in_phases(whole, asked)
                stats = self._history.stats
                scored = await self._guide.guided(asked, request, own, ended, stats)
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
            temperature=request.sampling.temperature if self._scheduled else None,
        )
        if scored is not own:
            as_sampled = dataclasses.replace(scored_group, episodes=own.episodes, scores=own.scores)
            self._history.stats.as_sampled[group] = as_sampled
        if lengths := first_lengths(own.episodes):
            self._lengths.observe(asked.index, lengths)
        return scored_group, ended

    async def _in_phases(
        self, whole: Request, asked: Open
    ) -> tuple[Request, ScoredEpisodes, Ended | None]:
        """Returns the answered request, a group's samples, and the reason if some are missing.

        First samples that become too old to train still count for the pass rate of their prompt.

        Raises:
          VoidTurns: see ``EpisodeRunner``.
        """
        request = self._screening.first(whole)
        scored = await self._played(completed := await self._first_turns(request), asked)
        if ended := self._screening.rejects(asked, scored.scores):
            return completed.request, scored, ended
        if seeds := whole.seeds[len(scored.episodes) :]:
            reached(FaultPoint.PILOTS_SCORED)
            others = dataclasses.replace(completed.request, seeds=seeds, resume=())
            others = self._refresher.refreshed(others)
            oldest = min(s.versions.min() for e in scored.episodes for s in e.sampled)
            try:
                rest = await self._other_samples(others, int(oldest))
            except GivenUp as given_up:
                return completed.request, scored, Ended(Ending.NOT_NEEDED, given_up.tokens)
            more = await self._played(rest, asked, first=len(scored.episodes))
            completed, scored = rest, joined(scored, more)
        return completed.request, scored, None

    async def _other_samples(self, request: Request, oldest: int) -> Completed:
        """Generates the samples of a group after the first ones.

        Args:
          oldest: oldest version of the first samples.

        Raises:
          GivenUp: the first samples have become too old, or the others have.
        """
        unbegun = GivenUp((0,) * len(request.seeds))
        if oldest < self._oldest:
            raise unbegun
        group = request.key.group
        expected = self._lengths.expected(self._history.open[group].index)
        answer = self._dispatcher.submit(request, expected)
        self._others[group] = oldest, answer
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if oldest >= self._oldest or (task is not None and task.cancelling()):
                raise
            raise unbegun from None  # or begun: how far they came will not be told
        finally:
            del self._others[group]

    async def _played(self, completed: Completed, asked: Open, *, first: int = 0) -> ScoredEpisodes:
        request = completed.request
        seed_of = functools.partial(sample_seed, self._section.seed, "train", request.key.group)
        parts = self._parts[self._section.environment_of(asked.prompt.id)]
        own_id = self._section.own_id(asked.prompt.id)  # only records tell the environment
        scored = await parts.episodes.run(
            dataclasses.replace(asked.prompt, id=own_id),
            completed,
            parts.rewards,
            seed_of,
            log=self._turns,
            first=first,
            step=asked.step,
        )
        stats = self._history.stats
        ended_s = time.perf_counter()
        stats.last_generated_s = ended_s - scored.reward_s
        stats.reward_s += scored.reward_s
        stats.spans.append(Span("rewards", "scores groups", stats.last_generated_s, ended_s))
        return scored

    def _again(self, request: Request) -> Request:
        """Returns the next attempt at a group; it keeps no samples, because some are void."""
        group = request.key.group
        recorded = self._turns.void(group)
        # Not the request's: its other samples may have been issued again, and given up then.
        attempt = self._history.open[group].attempt + (not recorded)
        again = dataclasses.replace(request, attempt=attempt, resume=())
        again = self._refresher.refreshed(again)
        if not recorded:
            self._refresher.reissued(again, QUARANTINED, Ending.QUARANTINED)
        self._turns.forget(group)
        return again

    async def _first_turns(self, request: Request) -> Completed:
        """Returns the answers to the prompt; if an earlier process recorded them, those."""
        expected = self._lengths.expected(self._history.open[request.key.group].index)
        group, samples = request.key.group, len(request.seeds)
        episodes = self._episodes(self._history.open[group].prompt)
        if not episodes.several_turns or episodes.begins == "play":
            if not self._turns.recorded(group):  # they may have become void before this trip
                self._turns.forget(group)
            return await episodes.answered(request, expected)
        if (known := self._turns.first_turns(group, samples)) is not None:
            given = dataclasses.replace(request, context=known[0].given)
            return Completed(given, tuple(turn.sampled for turn in known), ())
        self._turns.forget(group)
        completed = await self._dispatcher.submit(request, expected)
        while not trusted(completed.workers):  # since a moment ago: it must not even be recorded
            again = self._again(completed.request)
            completed = await self._dispatcher.submit(again, expected)
        turns = [Turn(completed.request.context, sampled) for sampled in completed.samples]
        self._turns.first_sampled(completed.request.key, turns)
        return completed

    async def _my_turn(self, group_id: int) -> None:
        """Waits in deterministic mode until all older groups are filtered, to keep issue order."""
        if group_id != self._history.oldest_open:
            turn = self._waiting[group_id] = asyncio.get_running_loop().create_future()
            await turn  # no longer than the older groups take, each of which has its deadlines

    def next_turn(self) -> None:
        """Deterministic mode: wakes the oldest open group, if it waits to be judged."""
        oldest = self._history.oldest_open
        turn = None if oldest is None else self._waiting.pop(oldest, None)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _judge(self, group: ScoredGroup, ended: Ended | None) -> None:
        self._savings.observe(group.of_policy)
        # A demonstration stands for a sample that failed.
        own, valid = group.of_policy.rewards, ~np.isnan(group.rewards)
        reasons = (one_line(why, 200) for one in self._filters if (why := one.reject(group)))
        reason = ended.reason if ended else next(reasons, None)
        rejected = reason if valid.any() else ALL_FAILED
        if not self._episodes(
            group.prompt
        ).several_turns:  # of others each turn is recorded when it is sampled
            key = Key("train", group.id)
            self._history.note(generated(key, group.attempt, tuple(group.sampled)))
        passed = int(np.sum(own >= self._section.curation.pass_threshold))
        given_up = ended.given_up if ended else ()
        saved = len(given_up), self._savings.tokens(given_up)
        event = ev.Scored(group.id, passed, int(valid.sum()), rejected, *saved)
        judged = group if rejected is None else Rejected(group, rejected)
        self._history.score(event, judged)
        self._observers.notify("group_scored", group=group, rejected=rejected)
        if rejected != Ending.NOT_NEEDED:
            self._guard.scored(rejected, failure_of(group.scores), judged)


class ExpectedLengths:
    """Mean lengths of the samples of each prompt so far, in tokens.

    They only decide the order in which groups are sent, never their samples. So they are not
    recorded, and a resumed run begins without them.

    Args:
      prompts: number of prompts.
    """

    def __init__(self, section: RlaxSection, prompts: int):
        # In deterministic mode nothing depends on what was generated earlier, not even an order.
        self._used = section.rollouts.order == "longest_first" and not section.deterministic
        self._mean_n = np.full(prompts if self._used else 0, np.nan, np.float32)
        self._sum, self._prompts = 0.0, 0  # of those that are known

    def observe(self, index: int, lengths: Sequence[int]) -> None:
        """Takes the lengths of a group's first turns, which count as much as all earlier groups.

        So the estimate follows a policy whose completions become longer or shorter.
        """
        if not self._used:
            return
        before, mean = float(self._mean_n[index]), float(np.mean(lengths))
        if np.isnan(before):
            self._prompts += 1
            before = 0.0
        else:
            mean = (before + mean) / 2
        self._mean_n[index] = mean
        self._sum += float(self._mean_n[index]) - before  # as it is stored, which is rounded

    def expected(self, index: int) -> float:
        """Returns the mean of a prompt, or that of all prompts if it has not been generated yet.

        0 if nothing is known, or the order does not depend on it.
        """
        if not self._prompts:
            return 0.0
        mean = float(self._mean_n[index])
        return self._sum / self._prompts if np.isnan(mean) else mean
