"""Builds a run's controller: every part whole, in the order in which they need each other."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import Choice
from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.controller.buffer import Buffer
from rlax_plugin.controller.chosen import Chosen, ChosenFilter, ChosenSampler
from rlax_plugin.controller.closing import Closing
from rlax_plugin.controller.controller import Controller, Records, RunSetup
from rlax_plugin.controller.flow import Flow
from rlax_plugin.controller.generation import Generation
from rlax_plugin.controller.guard import KeptGuard
from rlax_plugin.controller.issuing import Issuing
from rlax_plugin.controller.observers import Observers
from rlax_plugin.controller.prior import about_rates, first_rates
from rlax_plugin.controller.retention import retaining
from rlax_plugin.controller.run_directory import weights_directory
from rlax_plugin.controller.run_history import RunHistory
from rlax_plugin.controller.run_state import RunState
from rlax_plugin.controller.screening import check_rewards
from rlax_plugin.controller.staleness import Staleness
from rlax_plugin.controller.trips import Trips
from rlax_plugin.controller.turns import Turns
from rlax_plugin.evaluation.periodic import PeriodicEvaluation
from rlax_plugin.evaluation.problems import RunPrompts
from rlax_plugin.metrics.exporter import PrometheusTracker
from rlax_plugin.metrics.file import MetricsFile
from rlax_plugin.objective.loss import ObjectiveSlots
from rlax_plugin.ports.environment import Environment
from rlax_plugin.ports.protocols import Tracker, WeightStore
from rlax_plugin.ports.training import Trainer
from rlax_plugin.records import endpoints
from rlax_plugin.records.ledger import Ledger
from rlax_plugin.records.recorder import Recorder
from rlax_plugin.rollouts.requests import sampling_params
from rlax_plugin.rpc.run_secrets import run_secrets
from rlax_plugin.text.command_lines import pasteable
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.kept import listed_versions, record_versions
from rlax_plugin.weights.publisher import Publisher
from rlax_plugin.weights.service import ParameterServer


@dataclass(frozen=True, slots=True)
class Assembled:
    """A controller that has started, and the way of the weights from the trainer to its workers."""

    controller: Controller
    publisher: Publisher


class _Assembly:
    """The parts of one run, built one after the other.

    Args:
      trainer: that will run; asked only which checkpoints it has.
      supervision: runs what goes on beside the calls.
      closing: gets what ends all that is started.
      prompts: of training and of evaluations.
    """

    def __init__(
        self,
        setup: RunSetup,
        trainer: Trainer,
        observers: Observers,
        supervision: Supervision,
        closing: Closing,
        prompts: RunPrompts,
    ):
        self._setup, self._trainer, self._observers = setup, trainer, observers
        self._prompts = prompts
        self._supervision, self._closing = supervision, closing
        self._section = setup.section

    def _part(self, kind: str, choice: Choice, key: str) -> Any:
        return self._setup.registry.part(kind, choice, key, self._setup.context)

    def _chosen(self, kind: str, choice: Choice, key: str) -> Chosen[Any]:
        return Chosen.build(self._setup.registry, kind, choice, key, self._setup.context)

    async def controller(self) -> Assembled:
        s, setup, closing = self._section, self._setup, self._closing
        sampling = sampling_params(s, self._prompts.source)
        about = about_rates(s, sampling, setup.files.url, setup.origin)
        note, train = setup.dashboard.message, self._prompts.train
        rates = await asyncio.to_thread(first_rates, s, train, about, setup.files, note)
        store: WeightStore = self._part("weight_store", s.weights.store, "rlax.weights.store")
        filters = [
            ChosenFilter(self._chosen("filter", choice, f"rlax.curation.filters.{i}"))
            for i, choice in enumerate(s.curation.filters)
        ]
        sampler = ChosenSampler(
            self._chosen("sampler", s.curation.sampler, "rlax.curation.sampler")
        )
        slots: ObjectiveSlots = setup.registry.slots(setup.context)
        records = self._records()
        parameters = await self._parameter_server(store)

        run_state = RunState(s, train, sampler, rates)
        history = RunHistory(run_state, records.recorder)
        turns = Turns(history)
        environment: Environment = self._part("environment", s.environment, "rlax.environment")
        rule = BatchRule.of(s)
        staleness = Staleness(s, rule.groups)
        buffer = Buffer(history, rule, staleness, s.deterministic)
        issuing = Issuing(
            s,
            sampling,
            history=history,
            turns=turns,
            environment=environment,
            buffer=buffer,
            rule=rule,
            staleness=staleness,
            last_step=setup.last_step,
        )
        generation = Generation(
            setup.context,
            setup.registry,
            self._prompts,
            environment,
            parameters=parameters
            if isinstance(parameters, ParameterServer)
            else s.weights.parameter_server,
            trains=True,
            closing=closing,
            note=note,
            warn=note,
            reissuing=issuing,
        )
        trips = Trips(
            s,
            filters,
            dispatcher=generation.dispatcher,
            episodes=generation.episodes,
            rewards=generation.rewards,
            history=history,
            turns=turns,
            reissuing=issuing,
            observers=self._observers,
            guard=KeptGuard(s.curation.guard, setup.dashboard.message),
        )
        flow = Flow(
            history=history,
            issuing=issuing,
            trips=trips,
            turns=turns,
            buffer=buffer,
            advantage_slot=slots.recorded_advantages,
            observers=self._observers,
            supervision=self._supervision,
        )
        reader = ParameterServerClient(
            generation.parameter_server,
            generation.secrets.of_trainer,
            rpc_s=s.deadlines.rpc_s,
            outage_s=s.deadlines.weights_s,
        )
        closing.push_async_callback(reader.close)
        periodic = PeriodicEvaluation(
            every=s.evaluation.every if generation.evaluator.sets else 0,
            last_step=setup.last_step,
            evaluator=generation.evaluator,
            fleet=generation.fleet,
            client=reader,
            recorder=records.recorder,
            files=setup.files,
            supervision=self._supervision,
            display=setup.dashboard,
        )
        controller = Controller(
            setup,
            supervision=self._supervision,
            observers=self._observers,
            records=records,
            run_state=run_state,
            generation=generation,
            flow=flow,
            periodic=periodic,
            algorithm=slots.algorithm,
            about_rates=about,
        )
        generation.fleet.listeners.append(controller)
        if s.network.prometheus_port is not None:
            records.trackers.append(PrometheusTracker(controller, s.network))
        await self._start(generation)
        publisher = Publisher(
            loop=asyncio.get_running_loop(),
            store=store,
            directory=self._weights_directory,
            announcer=parameters,
            failures=self._supervision,
            deadline_s=s.deadlines.weights_s,
            pace=generation.pace,
            on_published=controller.published,
        )
        return Assembled(controller, publisher)

    def _records(self) -> Records:
        setup, closing = self._setup, self._closing
        state_dir = setup.context.run_dir
        trackers: list[Tracker] = []
        closing.ends_trackers(trackers, self._section.trackers, self._section.deadlines.close_s)
        # One by one: those before the one that cannot be built are closed.
        for i, choice in enumerate(self._section.trackers):
            trackers.append(self._part("tracker", choice, f"rlax.trackers.{i}"))
        ledger = Ledger(state_dir / "ledger.sqlite", run=setup.computes)
        recorder = Recorder(setup.files, ledger, self._supervision.fail_from_thread)
        closing.callback(recorder.close)
        metrics = MetricsFile(setup.files, state_dir)
        closing.callback(metrics.close)
        return Records(
            ledger=ledger,
            recorder=recorder,
            metrics=metrics,
            trackers=trackers,
            retaining=retaining(self._section, setup.files, self._trainer),
        )

    @property
    def _weights_directory(self) -> str:
        return weights_directory(self._section, self._setup.files)

    async def _parameter_server(
        self, store: WeightStore
    ) -> ParameterServer | ParameterServerClient:
        s, files = self._section, self._setup.files
        parameters: ParameterServer | ParameterServerClient
        if (address := s.weights.parameter_server) == "embedded":
            parameters = ParameterServer(
                store=store,
                keep=s.weights.keep,
                lease_s=s.deadlines.lease_s,
                close_s=s.deadlines.close_s,
                record=functools.partial(record_versions, files),
                listed=await asyncio.to_thread(listed_versions, files, self._weights_directory),
            )
        else:
            parameters = ParameterServerClient(
                address,
                run_secrets(self._setup.context.run_dir).of_trainer,
                rpc_s=s.deadlines.rpc_s,
                outage_s=s.deadlines.weights_s,
            )
        self._closing.push_async_callback(parameters.close)
        return parameters

    async def _start(self, generation: Generation) -> None:
        state_dir = self._setup.context.run_dir
        self._closing.callback(endpoints.remove_endpoints, state_dir)
        await generation.start(self._supervision)
        secrets = generation.secrets
        join = ("serve", "--controller", generation.address)
        command = pasteable("rlax", *join, "--token-file", str(secrets.worker_file))
        self._setup.dashboard.message(f"a further worker joins with:  {command}")
        check_rewards(self._section, generation.rewards.needs)
        reached_at = endpoints.Endpoints(generation.address, generation.parameter_server)
        endpoints.write_endpoints(state_dir, reached_at)


async def assemble(
    setup: RunSetup,
    trainer: Trainer,
    observers: Observers,
    supervision: Supervision,
    closing: Closing,
    prompts: RunPrompts,
) -> Assembled:
    """Brings up the reward pool, the endpoints and the workers.

    Raises:
      RlaxError: something did not start; ``closing`` ends what did.
    """
    supervision.watch_loop()
    assembly = _Assembly(setup, trainer, observers, supervision, closing, prompts)
    return await supervision.own(assembly.controller())
