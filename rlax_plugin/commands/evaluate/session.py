"""A controller that only measures: a parameter server with one version, a fleet, and rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.chosen import Builder
from rlax_plugin.controller.generation import Generation
from rlax_plugin.evaluation.asking import Handed, ask_all
from rlax_plugin.evaluation.problems import ProblemSet, RunPrompts
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.ports.protocols import PromptSource, WeightStore
from rlax_plugin.rollouts.pace import Pace
from rlax_plugin.rollouts.requests import sampling_params
from rlax_plugin.start.generation import GenerationStart
from rlax_plugin.start.running import Running
from rlax_plugin.types import Prompt, WeightVersion
from rlax_plugin.weights.host_fingerprint import digest
from rlax_plugin.weights.service import ParameterServer

_BACKLOG = 2  # a worker is sent twice its slots, so that it always has something to go on with


class Session:
    """Everything from the reward processes to the workers, for one weight version.

    ``open_session`` makes one. Its methods run on that event loop.

    Attributes:
      version: of the weights that are measured; -1 until they are published.
      weights: 8 hex digits, the same for the same weights; "" until they are published.
    """

    def __init__(
        self, supervision: Supervision, parameters: ParameterServer, generation: Generation
    ):
        self._supervision, self._parameters = supervision, parameters
        self._generation = generation
        self.version, self.weights = -1, ""

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
        self._generation.fleet.latest_version = self.version = version.version
        self.weights = digest({name: one.fingerprint for name, one in version.tensors.items()})

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

    def training_set(
        self, section: RlaxSection, split: str, prompts: Sequence[Prompt], samples: int
    ) -> ProblemSet:
        """Prompts of ``rlax.prompt_source`` as problems, judged as in training.

        Args:
          samples: of each prompt.
        """
        return ProblemSet(
            name=split,
            purpose=f"measure/{split}",
            source=self.source,
            prompts=prompts,
            samples=samples,
            sampling=sampling_params(section, self.source),
            rewards=self._generation.rewards,
        )

    async def ask(self, problems: ProblemSet, wanted: Iterable[int], hand: Handed) -> None:
        """Asks some prompts of a set; see ``ask_all``.

        Raises:
          RlaxError: no worker came, or a group cannot be generated.
        """
        await self._supervision.unless_failed(self._ask(problems, wanted, hand))

    async def _ask(self, problems: ProblemSet, wanted: Iterable[int], hand: Handed) -> None:
        generation = self._generation
        await generation.wait_for_worker()

        def at_once() -> int:
            slots = sum(worker.slots for worker in generation.fleet.workers.values())
            return 1 + _BACKLOG * slots // problems.samples

        await ask_all(
            generation.evaluator, problems, wanted, self.version, at_once=at_once, hand=hand
        )


async def open_session(
    builder: Builder,
    prompts: RunPrompts,
    *,
    store: WeightStore,
    note: Callable[[str], None],
    running: Running,
) -> Session:
    """Brings everything up; workers wait for a version. For ``Running.bring_up``.

    Args:
      store: where the version's bytes are; nothing is ever deleted from it here.
      note: shows in one line what went wrong with rewards; the evaluation goes on.

    Raises:
      RlaxError: something did not start.
    """
    deadlines = builder.section.deadlines
    parameters = ParameterServer(store=store, keep=1, lease_s=deadlines.lease_s)
    running.closing.part().push_async_callback(parameters.close)
    start = GenerationStart(
        builder,
        prompts,
        builder.environment(),
        parameters=parameters,
        running=running,
        note=note,
    )
    await start.start()
    return Session(running.supervision, parameters, start.made)
