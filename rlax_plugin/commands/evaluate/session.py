"""A controller that only evaluates: a parameter server with one version, a fleet, and rewards."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rlax_plugin.build import Registry
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.controller.closing import Closing
from rlax_plugin.controller.generation import Generation
from rlax_plugin.evaluation.problems import ProblemSet
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.ports.protocols import BuildContext, PromptSource, WeightStore
from rlax_plugin.rollouts.pace import Pace
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.service import ParameterServer

log = logging.getLogger("rlax.evaluate")


class Session:
    """Everything from the reward processes to the workers, for one weight version.

    Make it anywhere; its methods run on one event loop.

    Args:
      config_hash: of the workers' config.
      store: where the version's bytes are; nothing is ever deleted from it here.
      note: told in one line what went wrong with rewards, and goes on.

    Attributes:
      undo: ends what was started, last things first; takes what else is to end with it.
    """

    def __init__(
        self,
        context: BuildContext,
        registry: Registry,
        config_hash: str,
        store: WeightStore,
        note: Callable[[str], None],
    ):
        self._context, self._registry, self._config_hash = context, registry, config_hash
        self._store, self._note = store, note
        self._version = -1
        self._supervision = Supervision()
        self.fail = self._supervision.fail
        self.undo = Closing(log.warning)

    async def start(self) -> None:
        """Brings everything up; workers wait for the version.

        Raises:
          RlaxError: something did not start; ``close`` ends what did.
        """
        self._supervision.watch_loop()
        await self._supervision.own(self._start())

    async def _start(self) -> None:
        deadlines = self._context.section.deadlines
        self._parameters = ParameterServer(store=self._store, keep=1, lease_s=deadlines.lease_s)
        self.undo.push_async_callback(self._parameters.close)
        self._generation = Generation(
            self._context,
            self._registry,
            config_hash=self._config_hash,
            parameters=self._parameters,
            latest_version=lambda: self._version,
            undo=self.undo,
            note=self._note,
        )
        await self._generation.start(self._supervision.spawn)

    @property
    def pace(self) -> Pace:
        """What deadlines must at least be, once it is started."""
        return self._generation.pace

    @property
    def source(self) -> PromptSource:
        """Of training."""
        return self._generation.source

    @property
    def sets(self) -> tuple[ProblemSet, ...]:
        """The problem sets, once it is started."""
        return tuple(self._generation.evaluator.sets)

    async def serve(self, version: WeightVersion, restart: bool = False) -> None:
        """Gives workers the version that is to be measured."""
        await self._parameters.publish(version, restart)
        self._version = version.version

    async def measure(
        self, sets: tuple[ProblemSet, ...], progress: Callable[[int, int], None]
    ) -> Evaluated:
        """Measures some of the sets.

        Raises:
          RlaxError: no worker came, or a group cannot be generated.
        """
        return await self._supervision.unless_failed(self._measure(sets, progress))

    async def _measure(
        self, sets: tuple[ProblemSet, ...], progress: Callable[[int, int], None]
    ) -> Evaluated:
        await self._generation.wait_for_worker()
        evaluator = self._generation.evaluator
        evaluator.sets = sets
        return await evaluator.run(self._version, progress)

    async def close(self) -> None:
        """Ends everything that was started."""
        await self._supervision.close()
        await self.undo.aclose()
