"""A controller that only evaluates: a parameter server with one version, a fleet, and rewards."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.build import Registry
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.controller.closing import Closing
from rlax_plugin.controller.generation import Generation
from rlax_plugin.evaluation.problems import ProblemSet, RunPrompts
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.ports.protocols import BuildContext, PromptSource, WeightStore
from rlax_plugin.rollouts.pace import Pace
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.service import ParameterServer


class Session:
    """Everything from the reward processes to the workers, for one weight version.

    ``open_session`` makes one. Its methods run on that event loop.
    """

    def __init__(
        self, supervision: Supervision, parameters: ParameterServer, generation: Generation
    ):
        self._supervision, self._parameters = supervision, parameters
        self._generation = generation

    @property
    def pace(self) -> Pace:
        """What deadlines must at least be."""
        return self._generation.pace

    @property
    def source(self) -> PromptSource:
        """Of training."""
        return self._generation.source

    @property
    def sets(self) -> tuple[ProblemSet, ...]:
        """The problem sets."""
        return tuple(self._generation.evaluator.sets)

    async def writing(self, path: str) -> None:
        """See ``Announcer``; nothing: what a session writes is removed with its directory."""

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Gives workers the version that is to be measured."""
        await self._parameters.publish(version, restart)
        self._generation.fleet.latest_version = version.version

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
        return await evaluator.run(self._generation.fleet.latest_version, progress)


async def open_session(
    context: BuildContext,
    registry: Registry,
    prompts: RunPrompts,
    *,
    store: WeightStore,
    note: Callable[[str], None],
    supervision: Supervision,
    closing: Closing,
) -> Session:
    """Brings everything up; workers wait for a version.

    Args:
      store: where the version's bytes are; nothing is ever deleted from it here.
      note: shows in one line what went wrong with rewards; the evaluation goes on.

    Raises:
      RlaxError: something did not start; ``closing`` ends what did.
    """

    async def opened() -> Session:
        section = context.section
        parameters = ParameterServer(store=store, keep=1, lease_s=section.deadlines.lease_s)
        closing.push_async_callback(parameters.close)
        generation = Generation(
            context,
            registry,
            prompts,
            registry.part("environment", section.environment, "rlax.environment", context),
            parameters=parameters,
            trains=False,
            closing=closing,
            note=note,
        )
        await generation.start(supervision)
        return Session(supervision, parameters, generation)

    supervision.watch_loop()
    return await supervision.own(opened())
