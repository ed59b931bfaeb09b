"""Brings up the parts that generate and score groups, for a run or for an evaluation alone."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.handing import to_bytes
from rlax_plugin.config.identity import sample_hash
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.ports.environment import Environment
from rlax_plugin.ports.protocols import Launcher
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.rollout.batching.jobs import SIDE_CHANNELS
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.backlog import scale
from rlax_plugin.rollout.fleet.capabilities import Needs
from rlax_plugin.rollout.fleet.deadlines import Pace
from rlax_plugin.rollout.fleet.dispatch import Dispatcher, RequestRefresher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.fleet_service import FleetService
from rlax_plugin.rollout.fleet.newest import NewestVersion
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.rollout.fleet.requests import sampling_params
from rlax_plugin.rollout.fleet.scaling import Decision, Scaler
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import Role
from rlax_plugin.rpc.security.key_ring import on_ring
from rlax_plugin.rpc.security.operator_certificate import authority_of, served_identity
from rlax_plugin.rpc.security.run_secrets import RunSecrets, Upkeep, run_secrets
from rlax_plugin.rpc.security.secret import FollowedSecret
from rlax_plugin.rpc.transport.doors import Door, listen
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.controller.generation import EnvironmentParts, Generation
from rlax_plugin.run.evaluation.evaluator import Evaluator
from rlax_plugin.run.evaluation.problems import problem_sets
from rlax_plugin.run.hosts.leading import HostsService, Leader
from rlax_plugin.run.programs.colocated import colocated_worker, worker_process
from rlax_plugin.run.start.observed import ObservedRun, StatusService
from rlax_plugin.run.start.running import Running
from rlax_plugin.weights.parameter_server import ParameterServer

log = logging.getLogger("rlax.controller")

_LOOK_S = 0.1  # less than the shortest time for which a launcher says that a worker fails
_LONGEST_FAILING = 600  # characters of a sentence with a line of a worker's log


class GenerationStart:
    """Makes reward pools, endpoints and all other parts of a ``Generation``, on one event loop.

    They run only after ``start``.

    Args:
      prompts: of training and of evaluations.
      environments: name -> environment that turns the answers to its prompts into episodes; "" if
        there is one.
      parameters: the parameter server to serve beside the fleet, or host:port of one elsewhere.
      running: receives the cleanup of each started part.
      note: shows one line on an error of rewards or a worker; the run continues.
      training: issues groups again; None: samples are not trained on.
      newest: see ``Fleet``.
      trained: see ``Dispatcher``.

    Attributes:
      address: host:port of the controller's endpoint, with the advertised host.
      parameter_server: host:port.
      secrets: of the run.
      made: the parts that generate and score.
      devices: those of this process, if a worker in it generates; None: no worker is in it.
      resized: receives a number of workers, and the decision to change it.

    Raises:
      ConfigError: a part of the config cannot be built, or the port is taken.
    """

    def __init__(
        self,
        builder: Builder,
        prompts: RunPrompts,
        environments: Mapping[str, Environment],
        *,
        parameters: ParameterServer | str,
        running: Running,
        note: Callable[[str], None],
        training: RequestRefresher | None = None,
        newest: NewestVersion | None = None,
        trained: Callable[[], int] = lambda: 0,
    ):
        self.resized: Callable[[int, Decision], None] = lambda before, decision: None
        self._run_dir, self._running, self._note = builder.context.run_dir, running, note
        self._functions = builder.context.functions
        section, source = builder.section, prompts.source
        config: ResolvedConfig = builder.context.config or ResolvedConfig(section)
        launcher: Launcher = builder.part("launcher", section.launcher, "rlax.launcher")
        self._config, self._launches = config, not section.needs_no_workers
        self.devices = Devices() if launcher.colocated and self._launches else None
        each = section.by_environment
        rewards = {
            name: self._reward_pool(
                one, section.key_of(name, "rewards"), functools.partial(section.key_of, name)
            )
            for name, one in each.items()
        }
        own_rewards = {
            name: self._reward_pool(
                section.model_copy(update={"rewards": chosen.rewards}),
                f"rlax.evaluation.sets.{name}.rewards",
            )
            for name, chosen in section.evaluation.sets.items()
            if chosen.rewards and section.evaluation.problems
        }
        self._pools = (*rewards.values(), *own_rewards.values())
        network = section.network
        self.secrets = run_secrets(self._run_dir, authority_of(network.tls))
        callers = self.secrets.callers()
        self._callers = callers
        identity = served_identity(network.tls, self.secrets.identity, network.place.reached_at)
        self._upkeep = Upkeep(self.secrets, callers, identity, note=note, on_rotated=self._rotated)
        self._ring: Path | None = None
        self._server, self.address = listen(
            network.host,
            network.port,
            Door(callers, identity),
            "rlax.network.port",
            advertised=network.advertised_host,
        )
        self.parameter_server = self.address
        if isinstance(parameters, ParameterServer):
            parameters.add_to(self._server)
        else:
            self.parameter_server = parameters
        stop_strings = sampling_params(section, source).stop_strings
        fleet = Fleet(
            deadlines=section.deadlines,
            config_hash=sample_hash(config.content),
            parameter_server=self.parameter_server,
            config=to_bytes(config),
            needs=Needs.of(
                section,
                trains=training is not None,
                stop_strings=bool(stop_strings),
                side={**SIDE_CHANNELS, **builder.registry.side_channels(section)},
            ),
            note=note,
            newest=newest,
        )
        versions = PackageVersions(
            own_versions(section.plugins), allow_others=network.allow_other_versions, note=note
        )
        rpc.add_FleetServicer_to_server(FleetService(fleet, callers, versions), self._server)
        workers, hosts = builder.registry.workers(section), builder.context.hosts
        if self.devices is not None and hosts is not None and workers is not None:
            workers *= hosts.count
        pace = Pace(section, fleet.workers, workers, None if training is None else note)
        dispatcher = Dispatcher(
            fleet,
            section.deadlines,
            training,
            pace,
            source.decode,
            trained,
            by_speed=not section.deterministic,
            continues=section.rollouts.on_new_weights == "continue",
        )
        made: dict[str, EnvironmentParts] = {}
        for name, one in each.items():
            own = prompts.source_of(name)
            with section.keys_of(name):
                runner = EpisodeRunner(one, own, environments[name], dispatcher)
            made[name] = EnvironmentParts(own, rewards[name], runner)
        runners = {name: parts.episodes for name, parts in made.items()}
        sets = problem_sets(section, prompts.asked, rewards, own_rewards, runners)
        self.made = Generation(
            deadlines=section.deadlines,
            environments=made,
            launcher=launcher,
            scaler=Scaler(launcher.scaling) if launcher.scaling and self._launches else None,
            fleet=fleet,
            pace=pace,
            dispatcher=dispatcher,
            evaluator=Evaluator(section, dispatcher, sets),
        )

    def _reward_pool(
        self, section: RlaxSection, key: str, key_of: Callable[[str], str] = "rlax.{}".format
    ) -> RewardPool:
        pool = RewardPool(
            section,
            self._run_dir,
            key=key,
            note=self._note,
            functions=self._functions,
            maxtext=self._config.maxtext,
            key_of=key_of,
        )
        self._running.closing.ends("the reward processes", "rlax.rewards", pool.close)
        return pool

    def lead(self, leader: Leader) -> None:
        """Lets the other hosts of the trainer in; to be called before ``start``."""
        # Hosts that generate do so as workers, which show the same token.
        roles: tuple[Role, ...] = ("host",) if self.devices is None else ("host", "worker")
        self._callers.admit(self.secrets.share("host"), *roles)
        if (devices := self.devices) is not None:
            for host in range(1, leader.place.count):  # which all train at the same time
                process = worker_process(leader.start, host)
                self.made.fleet.pauses[process] = lambda: devices.trained_s
        rpc.add_HostsServicer_to_server(HostsService(leader), self._server)

    def show(self, observed: ObservedRun) -> None:
        """Lets the user's commands ask for the status; to be called before ``start``."""
        self._callers.admit(self.secrets.share("client"), "client")
        rpc.add_RunServicer_to_server(StatusService(observed), self._server)

    async def start(self) -> None:
        """Brings all parts up and has workers started.

        Raises:
          RlaxError: a part did not start.
        """
        made, closing = self.made, self._running.closing
        launcher, deadlines = made.launcher, made.deadlines
        made.pace.look()
        await self._server.start()
        closing.part().push_async_callback(self._server.stop, None)
        self._ring = closing.part().enter_context(on_ring(self.address, self.secrets.of_worker))
        closing.part().push_async_callback(made.fleet.close)
        told_s = (deadlines.heartbeats_lost + 2) * deadlines.heartbeat_s
        key = "rlax.deadlines.heartbeat_s"
        closing.ends("telling the workers", key, made.fleet.dismiss, told_s)
        closing.ends("the launcher", "rlax.launcher", launcher.stop, launcher.stop_s)
        closing.part().push_async_callback(made.dispatcher.close)
        if self._launches:  # else there is nothing to score either
            starts = [pool.start() for pool in self._pools]
            starts.append(launcher.start(self.address, self._run_dir, self.secrets.worker_file))
            await asyncio.gather(*starts)
        spawn = self._running.supervision.spawn
        if self.devices is not None:
            secret = FollowedSecret(self.secrets.worker_file, "rlax.launcher")
            content = sample_hash(self._config.content)
            run = RunToJoin(self.address, self._config.section, content, secret)
            spawn(colocated_worker(run, self._config, self.devices, made.fleet))
        spawn(made.fleet.watch())
        if made.scaler is not None:
            seen = made.dispatcher.backlog, made.fleet.workers
            spawn(scale(launcher, made.scaler, *seen, deadlines.heartbeat_s, self._decided))
        spawn(self._upkeep.run(deadlines.heartbeat_s))
        spawn(show_failing(launcher, self._note, _LOOK_S))

    def _decided(self, before: int, decision: Decision) -> None:
        said = f"from {before} to {decision.workers} workers: {decision.reason}"
        log.info("%s", said)
        self._note(said)
        self.resized(before, decision)

    def _rotated(self, secrets: RunSecrets) -> None:
        if self._ring is not None:
            try:
                secrets.of_worker.write(self._ring)
            except OSError as error:
                log.warning("%s cannot be written: %s", self._ring, error.strerror)


async def show_failing(launcher: Launcher, note: Callable[[str], None], every_s: float) -> None:
    """Shows each sentence about a worker that cannot be kept running once; runs until cancelled."""
    shown: set[str] = set()
    while True:
        failing = set(launcher.failing.values())
        for sentence in sorted(failing - shown):
            note(one_line(sentence, _LONGEST_FAILING))
        shown = failing
        await asyncio.sleep(every_s)
