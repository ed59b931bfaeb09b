"""The parts that generate and score groups, for a run or for an evaluation alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.liveness.activity import ends_at
from rlax_plugin.config import Deadlines
from rlax_plugin.ports.protocols import Launcher, PromptSource
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.deadlines import Pace
from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.scaling import Scaler
from rlax_plugin.run.display.waiting import ASSUME, Waiting
from rlax_plugin.run.evaluation.evaluator import Evaluator


@dataclass(frozen=True, slots=True)
class EnvironmentParts:
    """What plays and scores the episodes of one environment."""

    source: PromptSource
    rewards: RewardPool
    episodes: EpisodeRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Fleet, dispatcher, launcher, reward pool and evaluator, wired together on one event loop.

    ``start.generation`` makes one, and starts it.

    Attributes:
      environments: name -> its parts; "" if there is one.
      scaler: decides on the number of workers; None: the launcher does not change it.
      pace: computes the minimum of each deadline from measured speeds.
    """

    deadlines: Deadlines
    environments: Mapping[str, EnvironmentParts]
    launcher: Launcher
    scaler: Scaler | None = None
    fleet: Fleet
    pace: Pace
    dispatcher: Dispatcher
    evaluator: Evaluator

    def __post_init__(self) -> None:
        self.fleet.listeners += [self.dispatcher, self.pace]

    @property
    def source(self) -> PromptSource:
        """The source of the training prompts; of several, the first, as all have one tokenizer."""
        return next(iter(self.environments.values())).source

    @property
    def rewards(self) -> RewardPool:
        """The rewards of training, where there is one environment."""
        return self.environments[""].rewards

    @property
    def pools(self) -> tuple[RewardPool, ...]:
        """The rewards of all environments."""
        return tuple(parts.rewards for parts in self.environments.values())

    def starting(self) -> str:
        """Describes the workers that are not ready; empty if all are. Any thread."""
        workers = list(self.fleet.workers.values())
        published = self.fleet.newest.number >= 0
        starting = self.fleet.starting
        return starting.described(workers, self.pace.launched, published=published)

    async def wait_for_worker(self, waiting: Waiting | None = None) -> None:
        """Returns once a worker holds weights.

        Args:
          waiting: shows it; None: it is not shown.

        Raises:
          DeadlineError: no worker was ready in time.
        """
        deadline_s = self.deadlines.startup_s
        if waiting is not None:
            waiting.begin(
                "waiting for the first worker with weights",
                assumed=(ASSUME, self.deadlines.assume.startup_s),
                ends=ends_at("rlax.deadlines.startup_s", deadline_s),
            )
        try:
            await asyncio.wait_for(self.fleet.had_worker.wait(), deadline_s)
        except TimeoutError:
            names = ", ".join(sorted(self.fleet.workers)) or "none"
            what = f"the first rollout worker to become ready (registered: {names})"
            needed_s = self.pace.needed_s("startup_s")
            raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s", needed_s) from None
