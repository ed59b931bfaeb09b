"""Builds a run's controller: every part is complete before the parts that use it."""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import dataclass

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.base.types import SAFETENSORS
from rlax_plugin.config.identity import host_hash
from rlax_plugin.data.curation.pass_rate_files import About
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.ports.curation import Sampler
from rlax_plugin.ports.protocols import Tracker, WeightStore
from rlax_plugin.ports.training import Trainer
from rlax_plugin.rollout.fleet.newest import NewestVersion
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.rollout.fleet.requests import sampling_params
from rlax_plugin.rpc.security.operator_certificate import authority_of
from rlax_plugin.rpc.security.run_secrets import run_secrets
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.controller.buffer import Buffer
from rlax_plugin.run.controller.chosen import Chosen, ChosenFilter, ChosenSampler, ChosenSelection
from rlax_plugin.run.controller.controller import Controller, Records, RunSetup
from rlax_plugin.run.controller.flow import Flow
from rlax_plugin.run.controller.issuing import Issuing
from rlax_plugin.run.controller.limits import KeptGuard
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.run.controller.screening import check_rewards
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.run.controller.trips import Trips
from rlax_plugin.run.controller.turns import Turns
from rlax_plugin.run.evaluation.periodic import PeriodicEvaluation
from rlax_plugin.run.hosts.leading import Leader
from rlax_plugin.run.metrics.exporter import PrometheusTracker
from rlax_plugin.run.metrics.file import MetricsFile
from rlax_plugin.run.metrics.spans import SpansFile
from rlax_plugin.run.start.conversions import cannot_convert, converts_for
from rlax_plugin.run.start.generation_start import GenerationStart
from rlax_plugin.run.start.leading import record_start
from rlax_plugin.run.start.observed import ObservedRun
from rlax_plugin.run.start.prior import about_rates, first_rates
from rlax_plugin.run.start.run_directory import weights_directory
from rlax_plugin.run.start.running import Running
from rlax_plugin.run.state import endpoints
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.logged_samples import LoggedSamples, LogOrder
from rlax_plugin.run.state.recorder import Recorder
from rlax_plugin.run.state.retention import retaining
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import RunState
from rlax_plugin.training.objective.loss import ObjectiveSlots
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.kept_versions import listed_versions, record_versions
from rlax_plugin.weights.parameter_server import ParameterServer
from rlax_plugin.weights.publisher import Publisher, by_one_host
from rlax_plugin.weights.shared_writes import SharedWrites, shared_writer


@dataclass(frozen=True, slots=True)
class Assembled:
    """A started controller, and the publisher that takes weights from the trainer to workers.

    Attributes:
      leader: of the trainer's other hosts; None: there are none.
      devices: shared by the trainer with a worker in this process; None: there is none.
    """

    controller: Controller
    publisher: Publisher
    leader: Leader | None = None
    devices: Devices | None = None


class _Assembly:
    """The parts of one run, built one after the other.

    Args:
      trainer: the trainer of the run; used here only for its checkpoints and its vocabulary.
      running: receives the cleanup of each started part.
      prompts: of training and of evaluations.
      observed: shows the run to the user's other commands.
      logged: see ``assemble``.
    """

    def __init__(
        self,
        setup: RunSetup,
        trainer: Trainer,
        observers: Observers,
        running: Running,
        prompts: RunPrompts,
        observed: ObservedRun,
        logged: LoggedSamples | None,
    ):
        self._setup, self._trainer, self._observers = setup, trainer, observers
        self._observed = observed
        self._prompts, self._builder, self._section = prompts, setup.builder, setup.section
        self._closing, self._supervision = running.closing, running.supervision
        self._running, self._logged = running, logged

    async def controller(self) -> Assembled:
        s, setup, builder = self._section, self._setup, self._builder
        each = s.by_environment
        sampling = {
            name: sampling_params(one, self._prompts.source_of(name)) for name, one in each.items()
        }
        about = about_rates(
            s, sampling_params(s, self._prompts.source), setup.files.url, setup.origin
        )
        note, train = setup.dashboard.message, self._prompts.train
        rates = await asyncio.to_thread(first_rates, s, train, about, setup.files, note)
        store = builder.weight_store()
        filters = [
            ChosenFilter(Chosen.build(builder, "filter", choice, f"rlax.curation.filters.{i}"))
            for i, choice in enumerate(s.curation.filters)
        ]
        samplers: dict[str, Sampler] = {"": LogOrder()}
        if self._logged is None:
            key, choice = "rlax.curation.sampler", s.curation.sampler
            samplers = {
                name: ChosenSampler(Chosen.build(builder, "sampler", choice, key)) for name in each
            }
        selection = None
        if (choice := s.curation.selection) is not None:
            chosen = Chosen.build(builder, "selection", choice, "rlax.curation.selection")
            selection = ChosenSelection(chosen, s.samples_selected, s.seed)
        slots: ObjectiveSlots = builder.registry.slots(builder.context)
        own_slots = builder.registry.slots_of_environments(builder.context, slots)
        advantage_slots = {name: own_slots.get(name, slots).recorded_advantages for name in each}
        records = await self._records(about)
        parameters = await self._parameter_server(store)

        run_state = RunState(s, train, samplers, rates)
        history = RunHistory(run_state, records.recorder)
        turns = Turns(history)
        environments = builder.environments()
        rule = BatchRule.of(s)
        staleness = Staleness(s, rule.groups)
        buffer = Buffer(s, history, rule, staleness)
        newest = NewestVersion()
        issuing = Issuing(
            s,
            sampling,
            history=history,
            turns=turns,
            environments=environments,
            buffer=buffer,
            last_step=setup.last_step,
            newest=newest,
        )
        start = GenerationStart(
            builder,
            self._prompts,
            environments,
            parameters=parameters
            if isinstance(parameters, ParameterServer)
            else s.weights.parameter_server,
            running=self._running,
            note=note,
            training=issuing,
            newest=newest,
            trained=lambda: self._trainer.vocabulary,
        )
        generation = start.made
        trips = Trips(
            s,
            generation,
            filters=filters,
            guard=KeptGuard(s.curation.guard, note),
            observers=self._observers,
            history=history,
            turns=turns,
            refresher=issuing,
            logged=self._logged,
        )
        flow = Flow(
            history=history,
            issuing=issuing,
            trips=trips,
            turns=turns,
            buffer=buffer,
            advantage_slots=advantage_slots,
            observers=self._observers,
            supervision=self._supervision,
            selection=selection,
        )
        start.resized = flow.resized
        reader = ParameterServerClient(
            start.parameter_server,
            start.secrets.of_trainer,
            rpc_s=s.deadlines.rpc_s,
            outage_s=s.deadlines.weights_s,
        )
        self._closing.part().push_async_callback(reader.close)
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
            generation=generation,
            flow=flow,
            periodic=periodic,
            algorithm=slots.algorithm,
        )
        generation.fleet.listeners.append(controller)
        if s.network.prometheus_port is not None:
            exported = PrometheusTracker(controller.counts, controller.worker_figures, s.network)
            records.trackers.append(exported)
            note(f"metrics for Prometheus: {exported.url}")
        leader = self._leader(generates=start.devices is not None)
        shares = start.devices is not None and leader is not None
        if shares and not isinstance(parameters, ParameterServer):
            reason = f"must be embedded with launcher {s.launcher.name} on several hosts"
            key = "rlax.weights.parameter_server"
            raise ConfigError(key, s.weights.parameter_server, reason)
        if leader is not None:
            await asyncio.to_thread(record_start, setup.files, leader)
            start.lead(leader)
        generation.fleet.unmade = self._unmade(leader)
        start.show(self._observed)
        await self._start(start)
        near: ParameterServer | None = None
        if (leader is None or shares) and isinstance(parameters, ParameterServer):
            near = parameters
        written = None if leader is None else self._by_all_hosts(store, leader)
        publisher = Publisher(
            loop=asyncio.get_running_loop(),
            write=by_one_host(store) if written is None else written.write,
            directory=self._weights_directory,
            announcer=parameters,
            failures=self._supervision,
            deadline_s=s.deadlines.weights_s,
            pace=generation.pace,
            near=near,
            memory_bytes=s.weights.memory_mib << 20,
            on_visible=controller.visible,
            on_published=controller.published,
            on_converted=controller.converted,
            on_unwritten=(lambda version: None) if written is None else written.skip,
        )
        converts_for(generation.fleet, self._trainer.converter, store, publisher)
        self._supervision.spawn(publisher.show_slow(setup.dashboard.message))
        return Assembled(controller, publisher, leader, start.devices)

    def _unmade(self, leader: Leader | None) -> dict[str, str]:
        """Why this run converts no weights; empty: it does."""
        if not self._trainer.converts_versions:
            name = self._section.trainer.name
            return {SAFETENSORS: f"trainer {name} does not declare converts_versions"}
        if leader is not None:
            return {SAFETENSORS: "a trainer of several hosts does not convert weights"}
        key = "rlax.weights.path" if self._section.weights.path else "base_output_directory"
        reason = cannot_convert(self._weights_directory, key)
        return {SAFETENSORS: reason} if reason else {}

    def _leader(self, generates: bool) -> Leader | None:
        s, place = self._section, self._builder.context.hosts
        if place is None or not place.several:
            return None
        note = self._setup.dashboard.message
        versions = PackageVersions(own_versions(s.plugins), note=note)
        loop = asyncio.get_running_loop()
        config = self._builder.context.config
        assert config is not None, "a run has a config"
        return Leader(place, host_hash(config.content), versions, loop, note, generates)

    def _by_all_hosts(self, store: WeightStore, leader: Leader) -> SharedWrites:
        """The writer of parts whose arrays are spread over all hosts.

        Raises:
          ConfigError: the store cannot be written by several hosts.
        """
        shared = shared_writer(store, self._section)
        loop, deadline_s = asyncio.get_running_loop(), self._section.deadlines.weights_s
        leader.writes = SharedWrites(shared, leader.place.count, loop, deadline_s)
        return leader.writes

    async def _records(self, about: About) -> Records:
        setup, closing = self._setup, self._closing
        state_dir = self._builder.context.run_dir
        trackers: list[Tracker] = []
        closing.ends_trackers(trackers, self._section.trackers, self._section.deadlines.close_s)
        # One by one: those before the one that cannot be built are closed.
        for i, choice in enumerate(self._section.trackers):
            trackers.append(self._builder.part("tracker", choice, f"rlax.trackers.{i}"))
        open_ledger = functools.partial(
            Ledger, state_dir / "ledger.sqlite", setup.computes, note=self._ledger_waits
        )
        # It may be locked for minutes, and the loop serves workers and the terminal.
        ledger = await asyncio.wrap_future(on_daemon(open_ledger, "opening the ledger"))
        recorder = Recorder(setup.files, ledger, self._supervision.fail_from_thread)
        closing.part().callback(recorder.close)
        metrics = MetricsFile(setup.files, state_dir)
        closing.part().callback(metrics.close)
        spans = SpansFile(setup.files, state_dir)
        closing.part().callback(spans.close)
        return Records(
            ledger=ledger,
            recorder=recorder,
            metrics=metrics,
            spans=spans,
            trackers=trackers,
            about_rates=about,
            retaining=retaining(self._section, setup.files, self._trainer),
            checkpoints=self._trainer.checkpoints if self._trainer.keeps_checkpoints else dict,
        )

    def _ledger_waits(self, line: str, waits: bool) -> None:
        self._setup.dashboard.message(line)
        if waits:
            self._observed.ledger.begins(line)
        else:
            self._observed.ledger.ends()

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
                streams=s.weights.streams,
            )
        else:
            parameters = ParameterServerClient(
                address,
                run_secrets(self._builder.context.run_dir, authority_of(s.network.tls)).of_trainer,
                rpc_s=s.deadlines.rpc_s,
                outage_s=s.deadlines.weights_s,
            )
        self._closing.part().push_async_callback(parameters.close)
        return parameters

    async def _start(self, generation: GenerationStart) -> None:
        state_dir = self._builder.context.run_dir
        self._closing.part().callback(endpoints.remove_endpoints, state_dir)
        await generation.start()
        join = ("serve", "--controller", generation.address)
        token_file = os.path.abspath(generation.secrets.worker_file)
        command = pasteable("rlax", *join, "--token-file", token_file)
        self._setup.dashboard.message(f"a further worker joins with:  {command}")
        for pool in generation.made.pools:
            check_rewards(self._section, pool.needs)
        reached_at = endpoints.Endpoints(generation.address, generation.parameter_server)
        endpoints.write_endpoints(state_dir, reached_at)


async def assemble(
    setup: RunSetup,
    trainer: Trainer,
    observers: Observers,
    running: Running,
    prompts: RunPrompts,
    observed: ObservedRun,
    logged: LoggedSamples | None = None,
) -> Assembled:
    """Brings up the reward pool, the endpoints and the workers; for ``Running.bring_up``.

    Args:
      logged: what the run trains on; None: on samples that it generates.

    Raises:
      RlaxError: a part did not start.
    """
    return await _Assembly(
        setup, trainer, observers, running, prompts, observed, logged
    ).controller()
