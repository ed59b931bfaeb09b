"""The flow from prompts to batches: issue, score, admit, and take the oldest first.

Two integers bound staleness (RLAX): a worker reloads once per ``reload_every`` = j versions, and a
sample trains at step s only if s minus its oldest token's version is at most ``max_staleness`` = k.
At most ``(k - j + 1)`` steps' worth of groups are outstanding, so that in the ordinary case nothing
is ever too stale; the check itself is strict and drops what slipped through.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.dispatch import Dispatcher
from rlax_plugin.controller.pass_rates import PassRateTable
from rlax_plugin.controller.rewards import RewardPool
from rlax_plugin.errors import RlaxError, TrainingError
from rlax_plugin.protocols import Gate, PromptSource, Sampler
from rlax_plugin.types import Group, GroupRequest, Prompt, Rollout, SamplingParams

Advantage = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sample_seed(run_seed: int, purpose: str, group: int | str, index: int) -> int:
    """The 64-bit seed of one sample: a hash of who it is, so that issuing it again repeats it."""
    name = f"{run_seed}/{purpose}/{group}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def sampling_params(section: RlaxSection, source: PromptSource) -> SamplingParams:
    r = section.rollouts
    return SamplingParams(
        temperature=r.temperature,
        top_k=r.top_k,
        top_p=r.top_p,
        max_new_tokens=r.max_new_tokens,
        stop_ids=() if r.ignore_stop else source.stop_ids,
    )


@dataclass(slots=True)
class StepStats:
    """What happened between two batches; becomes the step's metrics and its lines on disk."""

    scored: list[tuple[Group, str | None]] = field(default_factory=list)
    dropped: int = 0
    issued: int = 0
    first_issued_s: float = math.inf  # of time.perf_counter
    last_drawn_s: float = -math.inf
    reward_s: float = 0.0  # summed over groups, which are scored side by side

    @property
    def generate_s(self) -> float:
        """From the first group issued to the last one drawn."""
        return max(0.0, self.last_drawn_s - self.first_issued_s)


@dataclass(slots=True)
class Totals:
    """Counts over the whole run, kept in the snapshot."""

    issued: int = 0
    admitted: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    samples: int = 0
    tokens: int = 0
    reward_errors: int = 0
    max_staleness: int = 0


class Flow:
    """Issues groups, has them scored and admitted, and hands out batches in issue order.

    Lives on the controller's event loop. ``wake`` is to be called whenever something changed that
    it does not see itself: a version was published.

    Args:
      latest_version: newest published weight version.
      advantage: rewards [n] float64 (NaN where scoring failed) and lengths [n] of one group ->
        advantages [n] float64.
      on_scored: called with each scored group and why it was refused, None if admitted.
    """

    def __init__(
        self,
        *,
        section: RlaxSection,
        source: PromptSource,
        sampler: Sampler,
        gates: Sequence[Gate],
        advantage: Advantage,
        dispatcher: Dispatcher,
        rewards: RewardPool,
        rates: PassRateTable,
        latest_version: Callable[[], int],
        on_scored: Callable[[Group, str | None], None] = lambda group, refused: None,
    ):
        self._section, self._source, self._sampler, self._gates = section, source, sampler, gates
        self._advantage, self._dispatcher, self._rewards = advantage, dispatcher, rewards
        self._rates, self._latest_version, self._on_scored = rates, latest_version, on_scored
        self._prompts = source.prompts("train")
        self._sampling = sampling_params(section, source)
        self._rng = np.random.default_rng([section.seed, 1])
        self._batch_groups = section.rollouts.groups_per_step
        stale = section.staleness
        self._max_staleness = stale.max_staleness
        lead = stale.max_staleness - stale.reload_every + 1
        self._capacity = math.ceil(lead * self._batch_groups * section.curation.oversample)
        self._next_id = 0
        self._last_step: int | None = None
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._ready: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._running = False
        self.next_step = 1
        self.stats = StepStats()
        self.totals = Totals()

    def start(self, next_step: int, last_step: int) -> None:
        """Begins to issue groups for the batches ``next_step`` .. ``last_step``."""
        self.next_step, self._last_step, self._running = next_step, last_step, True
        self._changed.set()
        self.wake()

    def wake(self) -> None:
        if self._running and self._failure is None:
            self._fill()

    # --- issuing -------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        return len(self._in_flight) + len(self._ready)

    def _wanted_version(self, ahead: int) -> int:
        """The oldest version a group may be drawn with if ``ahead`` groups train before it."""
        trains_at = self.next_step + ahead // self._batch_groups
        return max(0, trains_at - self._max_staleness)

    def refresh(self, request: GroupRequest) -> int:
        """``min_version`` of a group that is issued again: what the next step accepts."""
        return max(request.min_version, self._wanted_version(0))

    def _fill(self) -> None:
        """Issues as many groups as the bounds on flight and staleness allow."""
        assert self._last_step is not None
        steps_left = self._last_step - self.next_step + 1
        capacity = min(self._capacity, math.ceil(steps_left * self._batch_groups))
        while (room := capacity - self.outstanding) > 0:
            version = self._wanted_version(self.outstanding)
            if version > self._latest_version():
                return  # its publication wakes us
            if self.stats.issued >= self._section.curation.max_refill * self._batch_groups:
                self._give_up()
                return
            # Those that share a step share a wanted version: choose them together.
            in_step = self._batch_groups - self.outstanding % self._batch_groups
            count = min(room, in_step)
            for index in self._sampler.choose(self._prompts, self._rates, self._rng, count):
                self._issue(self._prompts[index], version)

    def _give_up(self) -> None:
        if self._in_flight or len(self._ready) >= self._batch_groups:
            return  # what is still in flight may yet do
        reasons = Counter(refused for _, refused in self.stats.scored if refused)
        self.fail(
            TrainingError(
                f"step {self.next_step}: {self.stats.issued} groups were issued and only "
                f"{len(self._ready)} of {self._batch_groups} were admitted (refused: "
                f"{dict(reasons)}). The task is too easy, too hard, or the gates are too strict; "
                "rlax.curation.max_refill sets how long to go on"
            )
        )

    def _issue(self, prompt: Prompt, min_version: int) -> None:
        group_id, self._next_id = self._next_id, self._next_id + 1
        count = self._section.rollouts.group_size
        seeds = tuple(sample_seed(self._section.seed, "train", group_id, i) for i in range(count))
        request = GroupRequest(group_id, 1, prompt.tokens, seeds, self._sampling, min_version)
        self.totals.issued += 1
        self.stats.issued += 1
        self.stats.first_issued_s = min(self.stats.first_issued_s, time.perf_counter())
        self._in_flight[group_id] = asyncio.ensure_future(self._one_group(request, prompt))

    # --- one group -----------------------------------------------------------------------------

    async def _one_group(self, request: GroupRequest, prompt: Prompt) -> None:
        try:
            request, rollouts = await self._dispatcher.submit(request)
            drawn_s = time.perf_counter()
            rollouts = await self._rewards.score(prompt, self.decode(rollouts))
            self.stats.last_drawn_s = drawn_s
            self.stats.reward_s += time.perf_counter() - drawn_s
            self._judge(request, prompt, rollouts)
        except Exception as error:  # noqa: BLE001  stops the run: the trainer's wait raises it
            self.fail(error)
        del self._in_flight[request.group_id]
        self._changed.set()
        self.wake()

    def decode(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [dataclasses.replace(r, text=self._source.decode(r.tokens)) for r in rollouts]

    def _judge(self, request: GroupRequest, prompt: Prompt, rollouts: list[Rollout]) -> None:
        known = self._rates.get(prompt.id)
        group = Group(
            id=request.group_id,
            attempt=request.attempt,
            prompt=prompt,
            rollouts=tuple(rollouts),
            measured_pass_rate=None if known is None else known[0],
        )
        rewards = group.rewards
        valid = ~np.isnan(rewards)
        passed = int(np.sum(rewards[valid] >= self._section.curation.pass_threshold))
        self._rates.observe(prompt.id, passed, int(valid.sum()))
        refused = None if valid.any() else "all rewards failed"
        for gate in self._gates:
            refused = refused or gate.refuse(group)
        if refused is None:
            lengths = np.array([len(r.tokens) for r in rollouts])
            group = dataclasses.replace(group, advantages=self._advantage(rewards, lengths))
            self._ready[group.id] = group
            self.totals.admitted += 1
        else:
            self.totals.filtered[refused] += 1
        self.totals.samples += len(rollouts)
        self.totals.tokens += sum(len(r.tokens) for r in rollouts)
        self.totals.reward_errors += int((~valid).sum())
        self.stats.scored.append((group, refused))
        self._on_scored(group, refused)

    # --- batches -------------------------------------------------------------------------------

    async def batch(self, step: int) -> tuple[tuple[Group, ...], StepStats]:
        """The groups that train at ``step``, oldest issued first, and what happened on the way.

        Raises:
          RlaxError: whatever made the flow fail.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._running:
                if step != self.next_step:
                    raise TrainingError(f"asked for step {step}, next is {self.next_step}")
                groups = self._oldest(step)
                if groups is not None:
                    break
            self._changed.clear()
            await self._changed.wait()
        for group in groups:
            del self._ready[group.id]
        self.totals.trained += len(groups)
        staleness = max(step - g.oldest_version for g in groups)
        self.totals.max_staleness = max(self.totals.max_staleness, staleness)
        stats, self.stats = self.stats, StepStats()
        self.next_step = step + 1
        self.wake()
        return groups, stats

    def _oldest(self, step: int) -> tuple[Group, ...] | None:
        """The first full batch in issue order, or None while an older group is still out."""
        for group in list(self._ready.values()):
            if step - group.oldest_version > self._max_staleness:
                del self._ready[group.id]
                self.totals.dropped["too stale"] += 1
                self.stats.dropped += 1
                self.wake()
        ids = sorted(self._ready)[: self._batch_groups]
        if len(ids) < self._batch_groups:
            return None
        if any(group_id < ids[-1] for group_id in self._in_flight):
            return None
        return tuple(self._ready[i] for i in ids)

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

    # --- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """JSON-able state; what is in flight or ready is not kept and is drawn anew."""
        # Not dataclasses.asdict: it makes a Counter of a Counter's items.
        totals = {f.name: getattr(self.totals, f.name) for f in dataclasses.fields(self.totals)}
        return {
            "next_step": self.next_step,
            "next_id": self._next_id,
            "rng": self._rng.bit_generator.state,
            "sampler": self._sampler.state(),
            "pass_rates": self._rates.state(),
            "totals": totals,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._next_id = state["next_id"]
        self._rng.bit_generator.state = state["rng"]
        self._sampler.restore(state["sampler"])
        self._rates.restore(state["pass_rates"])
        totals = dict(state["totals"])
        for name in ("filtered", "dropped"):
            totals[name] = Counter(totals[name])
        self.totals = Totals(**totals)
