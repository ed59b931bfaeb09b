"""A controller that only measures: a parameter server with one version, a fleet, and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.types import Prompt, WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.ports.protocols import WeightStore
from rlax_plugin.rollout.fleet.requests import sampling_params
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.display.waiting import Waiting
from rlax_plugin.run.evaluation.problems import Answered, ProblemSet
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.start.generation_start import GenerationStart
from rlax_plugin.run.start.running import Running
from rlax_plugin.weights.fingerprint import digest
from rlax_plugin.weights.parameter_server import ParameterServer

_BACKLOG = 2  # a worker is sent twice its slots, so that it always has something to go on with


class Session:
    """Everything from the reward processes to the workers, for one weight version.

    ``open_session`` creates one. Its methods run on the event loop of that call.

    Attributes:
      generation: its workers, rewards, prompts and sets.
      weights: digest of the weights, 8 hex digits; "" until they are published.
    """

    def __init__(
        self,
        supervision: Supervision,
        parameters: ParameterServer,
        generation: Generation,
        devices: Devices | None = None,
    ):
        self._supervision, self._parameters, self._devices = supervision, parameters, devices
        self.generation = generation
        self.weights = ""

    @property
    def version(self) -> int:
        """The version that is measured; -1 until it is published."""
        return self.generation.fleet.newest.number

    def trainer_ended(self) -> None:
        """Lets a worker in this process use the devices, where no trainer does; any thread."""
        if self._devices is not None:
            self._devices.rest()

    async def writing(self, path: str) -> None:
        """Does nothing, see ``Announcer``: a session's files are removed with its directory."""

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Publishes the version to measure to the workers."""
        await self._parameters.publish(version, restart)
        self.generation.fleet.newest.number = version.version
        self.weights = digest({name: one.fingerprint for name, one in version.tensors.items()})

    async def worker_ready(self, waiting: Waiting) -> None:
        """Returns once a worker holds weights.

        Raises:
          RlaxError: no worker came.
        """
        await self._supervision.unless_failed(self.generation.wait_for_worker(waiting))

    async def measure(
        self, sets: tuple[ProblemSet, ...], progress: Callable[[int, int], None]
    ) -> Evaluated:
        """Measures some of the sets, once a worker is ready.

        Raises:
          RlaxError: a group cannot be generated.
        """
        evaluator = self.generation.evaluator
        evaluator.sets = sets
        return await self._supervision.unless_failed(evaluator.run(self.version, progress))

    def training_set(
        self, section: RlaxSection, split: str, prompts: Sequence[Prompt], samples: int
    ) -> ProblemSet:
        """Returns prompts of ``rlax.prompt_source`` as problems, scored as in training.

        Args:
          samples: number of samples of each prompt.
        """
        return ProblemSet(
            name=split,
            purpose=f"measure/{split}",
            source=self.generation.source,
            prompts=prompts,
            samples=samples,
            sampling=sampling_params(section, self.generation.source),
            rewards=self.generation.rewards,
            episodes=self.generation.environments[""].episodes,
        )

    async def ask(
        self,
        problems: ProblemSet,
        wanted: Iterable[int],
        hand: Callable[[int, Answered], Awaitable[None]],
    ) -> None:
        """Generates and scores some prompts of a set in their order, once a worker is ready.

        Memory does not grow with the number of prompts: a prompt is read when its generation
        begins, and its answers are dropped once they are handed over.

        Args:
          wanted: indices into ``problems.prompts``.
          hand: awaited with the index and the answers of each prompt, in the order in which they
            end.

        Raises:
          RlaxError: a prompt cannot be generated; the unfinished ones are cancelled.
        """
        await self._supervision.unless_failed(self._ask(problems, iter(wanted), hand))

    async def _ask(
        self,
        problems: ProblemSet,
        wanted: Iterator[int],
        hand: Callable[[int, Answered], Awaitable[None]],
    ) -> None:
        fleet, evaluator = self.generation.fleet, self.generation.evaluator
        going: dict[asyncio.Task[Answered], int] = {}
        more = True
        try:
            while more or going:
                slots = sum(worker.slots for worker in fleet.workers.values())
                at_once = 1 + _BACKLOG * slots // problems.samples
                while more and len(going) < at_once:
                    if more := (index := next(wanted, None)) is not None:
                        prompt = problems.prompts[index]
                        answered = evaluator.answered(problems, prompt, index, self.version)
                        going[asyncio.ensure_future(answered)] = index
                if going:
                    ended, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        await hand(going.pop(task), task.result())
        finally:
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)


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
      store: store of the version's bytes; nothing is deleted from it here.
      note: shows a failure of rewards in one line; the evaluation continues.

    Raises:
      RlaxError: something did not start.
    """
    deadlines, streams = builder.section.deadlines, builder.section.weights.streams
    parameters = ParameterServer(store, keep=1, lease_s=deadlines.lease_s, streams=streams)
    running.closing.part().push_async_callback(parameters.close)
    start = GenerationStart(
        builder, prompts, builder.environments(), parameters=parameters, running=running, note=note
    )
    await start.start()
    return Session(running.supervision, parameters, start.made, start.devices)
