"""One group's trip: it is generated, scored, and judged by the filters."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.observers import Observers
from rlax_plugin.controller.refill import ALL_FAILED
from rlax_plugin.controller.run_history import RunHistory
from rlax_plugin.ports.protocols import Filter, PromptSource
from rlax_plugin.records import events as ev
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.dispatch import Dispatcher, Reissuing
from rlax_plugin.rollouts.requests import single_turn
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Prompt, Rejected, Request, ScoredGroup


class Trips:
    """Takes groups from their request to their event ``Scored``.

    Args:
      reissuing: makes the next attempt, where a worker's samples turn out to be void.
      observers: are told of each scored group.
    """

    def __init__(
        self,
        section: RlaxSection,
        source: PromptSource,
        filters: Sequence[Filter],
        *,
        dispatcher: Dispatcher,
        rewards: RewardPool,
        history: RunHistory,
        reissuing: Reissuing,
        observers: Observers,
    ):
        self._section, self._source, self._filters = section, source, filters
        self._dispatcher, self._rewards = dispatcher, rewards
        self._history, self._reissuing, self._observers = history, reissuing, observers
        self._turns: dict[int, asyncio.Future[None]] = {}  # of groups that wait to be judged

    async def run(self, request: Request) -> None:
        """Returns once the group is judged; call ``next_turn`` when what follows is done, too.

        Raises:
          RlaxError: it cannot be generated, or a deadline has passed.
        """
        prompt = self._history.open[request.key.group].prompt
        self._judge(await self._scored(request, prompt))

    async def _scored(self, request: Request, prompt: Prompt) -> ScoredGroup:
        while True:
            request, samples, workers = await self._dispatcher.submit(request)
            generated_s = time.perf_counter()
            episodes = single_turn(self._source, prompt, samples)
            scores = await self._rewards.score(prompt, episodes)
            self._history.stats.last_generated_s = generated_s
            self._history.stats.reward_s += time.perf_counter() - generated_s
            if self._section.deterministic:
                await self._my_turn(request.key.group)
            if all(worker.trusted for worker in workers):
                break
            # None of its samples are kept: a part of them is void.
            again = dataclasses.replace(request, attempt=request.attempt + 1, resume=())
            request = self._reissuing.refreshed(again)
            self._reissuing.reissued(request, "its worker was quarantined")
        known = self._history.run_state.rates.get(prompt.id)
        return ScoredGroup(
            id=request.key.group,
            attempt=request.attempt,
            prompt=prompt,
            episodes=episodes,
            scores=tuple(scores),
            pass_rate_before=None if known is None else known[0],
        )

    async def _my_turn(self, group_id: int) -> None:
        """Deterministic mode: groups are judged in issue order, whichever is generated first."""
        if group_id != min(self._history.open):
            turn = self._turns[group_id] = asyncio.get_running_loop().create_future()
            await turn  # no longer than the older groups take, each of which has its deadlines

    def next_turn(self) -> None:
        """Lets the oldest open group be judged, if it waits for that."""
        turn = self._turns.pop(min(self._history.open, default=-1), None)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _judge(self, group: ScoredGroup) -> None:
        rewards = group.rewards
        valid = ~np.isnan(rewards)
        reasons = (one_line(why, 200) for one in self._filters if (why := one.reject(group)))
        rejected = next(reasons, None) if valid.any() else ALL_FAILED
        self._history.note(
            ev.Generated(
                group=group.id,
                attempt=group.attempt,
                workers=tuple(dict.fromkeys(n for e in group.episodes for n in e.workers)),
                oldest_version=group.oldest_version,
                newest_version=group.newest_version,
                samples=len(group.episodes),
                tokens=sum(episode.tokens for episode in group.episodes),
            )
        )
        passed = int(np.sum(rewards[valid] >= self._section.curation.pass_threshold))
        event = ev.Scored(group.id, passed, int(valid.sum()), rejected)
        self._history.score(event, group if rejected is None else Rejected(group, rejected))
        self._observers.notify("group_scored", group=group, rejected=rejected)
