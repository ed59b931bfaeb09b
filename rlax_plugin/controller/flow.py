"""The flow from prompts to batches: issue, score, filter, and take the oldest first.

What it decides is applied to the run state (what has become of every group) and goes to the
recorder; here is what runs side by side, and when.

``Staleness`` bounds how much is issued at once, and with which versions; the check of what arrives
is strict, and drops what slipped through. ``BatchRule`` says what a step's worth is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.controller.recovery import Recovery, ReplayInterval
from rlax_plugin.controller.refill import ALL_FAILED, too_few_accepted
from rlax_plugin.controller.run_state import Open, RunState
from rlax_plugin.controller.staleness import Staleness
from rlax_plugin.errors import RlaxError, TrainingError
from rlax_plugin.metrics.step import StepStats
from rlax_plugin.objective import advantages
from rlax_plugin.objective.advantages import AdvantageSlot
from rlax_plugin.ports.protocols import Filter, PromptSource
from rlax_plugin.records import events as ev
from rlax_plugin.records.journal import START
from rlax_plugin.records.recorder import Commit, Recorder
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.dispatch import Dispatcher
from rlax_plugin.rollouts.requests import decoded, sample_seed, sampling_params
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Group, GroupRequest


class Flow:
    """Issues groups, has them scored and accepted, and hands out batches in issue order.

    Lives on the controller's event loop. ``wake`` is to be called whenever something changed that
    it does not see itself: a version was published.

    Args:
      latest_version: newest published weight version.
      advantage_slot: called with each new batch.
      on_scored: called with each scored group, why it was rejected (None if accepted), and whether
        an earlier process had scored it after the checkpoint.
    """

    def __init__(
        self,
        *,
        section: RlaxSection,
        source: PromptSource,
        filters: Sequence[Filter],
        advantage_slot: AdvantageSlot,
        dispatcher: Dispatcher,
        rewards: RewardPool,
        run_state: RunState,
        recorder: Recorder,
        latest_version: Callable[[], int],
        on_scored: Callable[[Group, str | None, bool], None] = lambda group, rejected, again: None,
    ):
        self._section, self._source, self._filters = section, source, filters
        self._advantage_slot = advantage_slot
        self._dispatcher, self._rewards = dispatcher, rewards
        self._latest_version, self._on_scored = latest_version, on_scored
        self.run_state, self._recorder = run_state, recorder
        self._sampling = sampling_params(section, source)
        self._rule = BatchRule.of(section)
        self._staleness = Staleness(section, self._rule.groups)
        self._last_step: int | None = None
        self._recovery: Recovery | None = None
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._turns: dict[int, asyncio.Future[None]] = {}  # of groups that wait to be judged
        self._distrusted: set[str] = set()  # workers that were quarantined before this is live
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._running = False
        self._position = (0, START)  # in the journal, while recorded batches are handed out
        self._published: list[ev.Published] = []
        self.stats = StepStats()

    async def start(self, recovery: Recovery, last_step: int) -> None:
        """Begins to hand out batches up to ``last_step``; recorded ones first, as they are.

        No group is issued before the last recorded batch was handed out.
        """
        self._recovery, self._last_step = recovery, last_step
        self._position = recovery.segment, recovery.checksum
        if recovery.last_step is None:
            self._go_live(await self._recorder.call(recovery.load_rest))
        self._changed.set()

    def _go_live(self, rest: ReplayInterval) -> None:
        """Adds up what happened after the last recorded batch, and goes on from there."""
        assert self._recovery is not None
        self._replay(rest)
        self._running = True
        for worker in self._distrusted:  # it outlived an earlier process, and has failed since
            self._drop_of(worker)
        if self._recovery.anything:
            self._note(ev.Resumed(self._recovery.step))
        for event in self._published:
            self._note(event)
        self.wake()

    def _replay(self, interval: ReplayInterval) -> None:
        interval.apply(self.run_state)
        for group, rejected in interval.scored:
            self._on_scored(group, rejected, True)

    def published(self, version: int, digest: str) -> None:
        """A weight version is visible to workers."""
        event = ev.Published(version, digest)
        if self._running:
            self._note(event)
            self.wake()
        else:
            self._published.append(event)  # recorded after what is recorded already

    def wake(self) -> None:
        if self._running and self._failure is None:
            self._issue_open()
            self._fill()

    def _note(self, event: ev.Event) -> None:
        """Makes an event true, and has it written down."""
        self.run_state.apply(event)
        self._recorder.add(event)

    # --- issuing -------------------------------------------------------------------------------

    def _outstanding(self) -> int:
        """Groups that will train before the next one issued, as the batch rule counts them.

        As long as this is not a step's worth, the next batch lacks something. So once nothing is
        open any more, there is room for what it lacks.
        """
        return len(self.run_state.open) + self._rule.worth(self._ready())

    def refresh(self, request: GroupRequest) -> GroupRequest:
        """A group that is issued again, with the version that it needs by now."""
        return self._staleness.refreshed(request, self.run_state.next_step)

    def reissued(self, request: GroupRequest, reason: str) -> None:
        """The dispatcher has issued a group again."""
        if request.group_id in self.run_state.open:  # else it is one of an evaluation
            self._note(ev.Reissued(request.group_id, request.attempt, reason))

    def _issue_open(self) -> None:
        """Issues what was in flight when an earlier process ended, once its version is there."""
        for group_id, one in self.run_state.open.items():
            if group_id not in self._in_flight and one.min_version <= self._latest_version():
                self._note(ev.Reissued(group_id, one.attempt + 1, "the trainer was restarted"))
                self._issue(group_id, one)

    def _fill(self) -> None:
        """Issues as many groups as the bounds on flight and staleness allow."""
        assert self._last_step is not None
        steps_left = self._last_step - self.run_state.next_step + 1
        capacity = min(self._staleness.capacity, steps_left * self._rule.groups)
        while (ahead := self._outstanding()) < capacity:
            version = self._staleness.wanted_version(self.run_state.next_step, ahead)
            if version > self._latest_version():
                return  # its publication wakes us
            if (
                self.run_state.issued_for_step
                >= self._section.curation.max_refill * self._rule.groups
            ):
                self._give_up()
                return
            # Those that share a step share a wanted version: choose them together.
            in_step = self._rule.groups - ahead % self._rule.groups
            event = self.run_state.choose(min(capacity - ahead, in_step), version)
            self._recorder.add(event)
            for offset in range(len(event.prompts)):
                self._issue(event.first + offset, self.run_state.open[event.first + offset])
            self.stats.issued += len(event.prompts)

    def _give_up(self) -> None:
        ready = self._ready()
        if self.run_state.open or self._rule.completes(ready):
            return  # what is still in flight may yet do
        self.fail(
            too_few_accepted(
                self.run_state.next_step,
                self.run_state.issued_for_step,
                self._rule,
                ready,
                self.stats.scored,
            )
        )

    def _issue(self, group_id: int, one: Open) -> None:
        seeds = tuple(
            sample_seed(self._section.seed, "train", group_id, i)
            for i in range(self._section.rollouts.group_size)
        )
        request = GroupRequest(
            group_id, one.attempt, one.prompt.tokens, seeds, self._sampling, one.min_version
        )
        self.stats.first_issued_s = min(self.stats.first_issued_s, time.perf_counter())
        self._in_flight[group_id] = asyncio.ensure_future(self._one_group(request, one))

    # --- one group -----------------------------------------------------------------------------

    async def _one_group(self, request: GroupRequest, one: Open) -> None:
        try:
            group = await self._generated_and_scored(request, one)
            self._judge(group)
        except Exception as error:  # noqa: BLE001  stops the run: the trainer's wait raises it
            self.fail(error)
        del self._in_flight[request.group_id]
        self._changed.set()
        self.wake()
        self._give_turn()

    async def _generated_and_scored(self, request: GroupRequest, one: Open) -> Group:
        while True:
            request, rollouts, workers = await self._dispatcher.submit(request)
            generated_s = time.perf_counter()
            rollouts = await self._rewards.score(one.prompt, decoded(self._source, rollouts))
            self.stats.last_generated_s = generated_s
            self.stats.reward_s += time.perf_counter() - generated_s
            if self._section.deterministic:
                await self._my_turn(request.group_id)
            if all(worker.trusted for worker in workers):
                break
            again = dataclasses.replace(request, attempt=request.attempt + 1, resume=())
            request = self.refresh(again)  # nothing of what it had is kept: a part of it is void
            self.reissued(request, "its worker was quarantined")
        known = self.run_state.rates.get(one.prompt.id)
        return Group(
            id=request.group_id,
            attempt=request.attempt,
            prompt=one.prompt,
            rollouts=tuple(rollouts),
            measured_pass_rate=None if known is None else known[0],
        )

    async def _my_turn(self, group_id: int) -> None:
        """Deterministic mode: groups are judged in issue order, whoever is generated first."""
        if group_id != min(self.run_state.open):
            turn = self._turns[group_id] = asyncio.get_running_loop().create_future()
            await turn  # no longer than the older groups take, each of which has its deadlines

    def _give_turn(self) -> None:
        turn = self._turns.pop(min(self.run_state.open, default=-1), None)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _judge(self, group: Group) -> None:
        rollouts, rewards = group.rollouts, group.rewards
        valid = ~np.isnan(rewards)
        rejections = (
            one_line(why, 200) for filter in self._filters if (why := filter.reject(group))
        )
        rejected = next(rejections, None) if valid.any() else ALL_FAILED
        self._note(
            ev.Generated(
                group=group.id,
                attempt=group.attempt,
                worker=rollouts[0].worker,
                oldest_version=group.oldest_version,
                newest_version=max(int(r.versions.max()) for r in rollouts),
                samples=len(rollouts),
                tokens=sum(len(r.tokens) for r in rollouts),
            )
        )
        passed = int(np.sum(rewards[valid] >= self._section.curation.pass_threshold))
        scored = ev.Scored(group.id, passed, int(valid.sum()), rejected)
        self.run_state.apply(scored, group)
        self._recorder.add(scored, (group, rejected))
        self.stats.scored.append((group, rejected))
        self._on_scored(group, rejected, False)

    def distrust(self, worker: str) -> None:
        """A worker's samples will not train, except in batches that are recorded already."""
        if self._running:
            self._drop_of(worker)
            self.wake()
        else:
            self._distrusted.add(worker)

    def _drop_of(self, worker: str) -> None:
        for group in list(self.run_state.ready.values()):
            if any(worker in r.workers for r in group.rollouts):
                self._drop(group, "its worker was quarantined")

    def _drop(self, group: Group, reason: str) -> None:
        self._note(ev.Dropped(group.id, reason))
        self.stats.dropped += 1

    # --- batches -------------------------------------------------------------------------------

    async def batch(self, step: int) -> tuple[tuple[Group, ...], StepStats]:
        """The groups that train at ``step``, oldest issued first, and what happened on the way.

        A batch that an earlier process committed is the same again. A new one gets its advantages,
        which may depend on all of its groups, and is committed before it is returned.

        Raises:
          RlaxError: whatever made the flow fail.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._recovery is not None:
                if self._recovery.holds(step):
                    return await self._recorded(self._recovery, step)
                if step != self.run_state.next_step:
                    raise TrainingError(
                        f"asked for step {step}, next is {self.run_state.next_step}"
                    )
                chosen = self._oldest(step)
                if chosen is not None:
                    break
            self._changed.clear()
            await self._changed.wait()
        groups = advantages.of_groups(self._advantage_slot, chosen)
        staleness = max(step - g.oldest_version for g in groups)
        self._note(ev.Trained(step, tuple(g.id for g in groups), staleness))
        stats, self.stats = self.stats, StepStats()
        self._drop_stale(step + 1)
        self.wake()
        began_s = time.perf_counter()
        self._remember_segments(await self._recorder.commit(step, groups))
        stats.commit_s = time.perf_counter() - began_s
        return groups, stats

    async def _recorded(self, recovery: Recovery, step: int) -> tuple[tuple[Group, ...], StepStats]:
        found = await self._recorder.call(recovery.load, step)
        self._replay(found)
        self._position = found.segment, found.checksum
        stats = StepStats(
            found.scored,
            dropped=sum(isinstance(e, ev.Dropped) for e in found.events),
            issued=sum(len(e.prompts) for e in found.events if isinstance(e, ev.Issued)),
        )
        if step == recovery.last_step:
            self._go_live(await self._recorder.call(recovery.load_rest))
        return found.batch, stats

    def _remember_segments(self, commit: Commit) -> None:
        for group_id in commit.kept:
            if group_id in self.run_state.ready:
                self.run_state.segment_of[group_id] = commit.number

    async def commit(self) -> tuple[Commit, dict[str, Any]]:
        """Commits everything so far, without a batch; returns the segment and the run state."""
        if not self._running:  # recorded batches are trained again: nothing is new
            return Commit(*self._position, ()), self.run_state.state()
        state = self.run_state.state()  # now: while the segment is written, more may happen
        commit = await self._recorder.commit(self.run_state.next_step, None)
        self._remember_segments(commit)
        kept = dict.fromkeys(map(str, commit.kept), commit.number)
        state["ready"] = {g: home or kept[g] for g, home in state["ready"].items()}
        return commit, state

    def _ready(self) -> list[Group]:
        """Accepted groups, in issue order."""
        return [self.run_state.ready[group_id] for group_id in sorted(self.run_state.ready)]

    def _oldest(self, step: int) -> tuple[Group, ...] | None:
        """The first batch in issue order, or None while an older group is still out."""
        if self._drop_stale(step):
            self.wake()
        if self._section.deterministic and self.run_state.open:
            return None  # a batch may need fewer groups than were issued: see what becomes of all
        oldest_open = min(self.run_state.open, default=math.inf)
        return self._rule.choose([group for group in self._ready() if group.id < oldest_open])

    def _drop_stale(self, step: int) -> bool:
        """Drops what can train neither at ``step`` nor later; returns whether there was any."""
        stale = [group for group in self._ready() if self._staleness.excludes(group, step)]
        for group in stale:
            self._drop(group, "too stale")
        return bool(stale)

    def fail(self, error: BaseException) -> None:
        """Makes the trainer's wait raise ``error``."""
        if self._failure is None:
            self._failure = error
            self._changed.set()

    async def stop(self) -> None:
        """Cancels what is in flight."""
        self._running = False
        self.fail(RlaxError("the run is stopping"))
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
