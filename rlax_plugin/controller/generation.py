"""Generates and scores groups, for a run or for an evaluation alone, in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rlax_plugin.build import Registry
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.handing import to_bytes
from rlax_plugin.config.identity import sample_hash
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.controller.closing import PART_S, Closing
from rlax_plugin.episodes.runner import EpisodeRunner
from rlax_plugin.errors import DeadlineError
from rlax_plugin.evaluation.evaluator import Evaluator
from rlax_plugin.evaluation.problems import RunPrompts, problem_sets
from rlax_plugin.ports.environment import Environment
from rlax_plugin.ports.protocols import BuildContext, Launcher, TimedLauncher
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.rollouts.capabilities import Needs
from rlax_plugin.rollouts.dispatch import Dispatcher
from rlax_plugin.rollouts.fleet import Fleet, FleetListener, Worker
from rlax_plugin.rollouts.fleet_service import FleetService
from rlax_plugin.rollouts.pace import Pace
from rlax_plugin.rollouts.reissuing import Reissuing
from rlax_plugin.rollouts.requests import sampling_params
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.doors import Door, listen
from rlax_plugin.rpc.key_ring import on_ring
from rlax_plugin.rpc.run_secrets import run_secrets
from rlax_plugin.weights.service import ParameterServer


class _FirstWorker(FleetListener):
    """Knows when a worker has become ready."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def worker_ready(self, worker: Worker) -> None:
        self.ready.set()


class Generation:
    """Reward pools, endpoints, fleet, dispatcher, launcher and evaluator, wired together.

    Make it and use it on one event loop. Nothing runs before ``start``.

    Args:
      prompts: of training and of evaluations.
      environment: what their answers lead to.
      parameters: the parameter server to serve beside the fleet, or host:port of one elsewhere.
      trains: whether samples are to be trained on, which needs their log-probs.
      closing: gets what ends all that is started.
      note: shows in one line what went wrong with rewards or a worker; the run goes on.
      warn: see ``Pace``.
      reissuing: see ``Dispatcher``.

    Attributes:
      address: host:port of the controller's endpoint.
      parameter_server: host:port.
      secrets: of the run.
      pace: what the deadlines must at least be.

    Raises:
      ConfigError: a part of the config cannot be built, or the port is taken.
    """

    def __init__(
        self,
        context: BuildContext,
        registry: Registry,
        prompts: RunPrompts,
        environment: Environment,
        *,
        parameters: ParameterServer | str,
        trains: bool,
        closing: Closing,
        note: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        reissuing: Reissuing | None = None,
    ):
        self._context, self._closing, self._note = context, closing, note
        section: RlaxSection = context.section
        self._deadlines = section.deadlines
        config: ResolvedConfig = context.config or ResolvedConfig(section)

        def part(kind: str, choice: Choice, key: str) -> Any:
            return registry.part(kind, choice, key, context)

        self.source = source = prompts.source
        self.launcher: Launcher = part("launcher", section.launcher, "rlax.launcher")
        self.rewards = self._reward_pool(section, "rlax.rewards")
        own_rewards = {
            name: self._reward_pool(
                section.model_copy(update={"rewards": chosen.rewards}),
                f"rlax.evaluation.sets.{name}.rewards",
            )
            for name, chosen in section.evaluation.sets.items()
            if chosen.rewards and section.evaluation.problems
        }
        self._pools = (self.rewards, *own_rewards.values())
        self.secrets = run_secrets(context.run_dir)
        callers, network = self.secrets.callers(), section.network
        self._server, self.address = listen(
            network.host,
            network.port,
            Door(callers, self.secrets.identity),
            "rlax.network.port",
        )
        self.parameter_server = self.address
        if isinstance(parameters, ParameterServer):
            parameters.add_to(self._server)
        else:
            self.parameter_server = parameters
        stop_strings = sampling_params(section, source).stop_strings
        self.fleet = Fleet(
            deadlines=self._deadlines,
            config_hash=sample_hash(config.content),
            parameter_server=self.parameter_server,
            config=to_bytes(config),
            needs=Needs.of(section, trains=trains, stop_strings=bool(stop_strings)),
            note=note,
        )
        rpc.add_FleetServicer_to_server(FleetService(self.fleet, callers), self._server)
        self.pace = Pace(section, self.fleet.workers, registry.workers(section), warn)
        self.dispatcher = Dispatcher(
            self.fleet, self._deadlines, reissuing, self.pace, source.decode
        )
        self._first_worker = _FirstWorker()
        self.fleet.listeners += [self._first_worker, self.dispatcher, self.pace]
        sets = problem_sets(section, prompts.asked, self.rewards, own_rewards)
        self.episodes = EpisodeRunner(section, source, environment, self.dispatcher)
        self.evaluator = Evaluator(section, self.dispatcher, self.episodes, sets)

    def _reward_pool(self, section: RlaxSection, key: str) -> RewardPool:
        pool = RewardPool(section, self._context.run_dir, key=key, note=self._note)
        self._closing.ends("the reward processes", "rlax.rewards", pool.close)
        return pool

    async def start(self, supervision: Supervision) -> None:
        """Brings everything up and has workers started.

        Args:
          supervision: runs what watches the fleet.

        Raises:
          RlaxError: something did not start.
        """
        self.pace.look()
        await self._server.start()
        closing, heartbeat_s = self._closing, self._deadlines.heartbeat_s
        closing.push_async_callback(self._server.stop, None)
        closing.enter_context(on_ring(self.address, self.secrets.of_worker))
        closing.push_async_callback(self.fleet.close)
        told_s = (self._deadlines.heartbeats_lost + 2) * heartbeat_s
        key = "rlax.deadlines.heartbeat_s"
        closing.ends("telling the workers", key, self.fleet.dismiss, told_s)
        launcher = self.launcher
        stop_s = launcher.stop_s if isinstance(launcher, TimedLauncher) else PART_S
        closing.ends("the launcher", "rlax.launcher", launcher.stop, stop_s)
        closing.push_async_callback(self.dispatcher.close)
        run_dir = self._context.run_dir
        await asyncio.gather(
            *(pool.start() for pool in self._pools),
            launcher.start(self.address, run_dir, self.secrets.worker_file),
        )
        supervision.spawn(self.fleet.watch())

    async def wait_for_worker(self) -> None:
        """Returns once a worker holds weights.

        Raises:
          DeadlineError: none came in time.
        """
        deadline_s = self._deadlines.startup_s
        try:
            await asyncio.wait_for(self._first_worker.ready.wait(), deadline_s)
        except TimeoutError:
            names = ", ".join(sorted(self.fleet.workers)) or "none"
            what = f"the first rollout worker to become ready (registered: {names})"
            needed_s = self.pace.needed_s("startup_s")
            raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s", needed_s) from None
