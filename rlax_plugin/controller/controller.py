"""The controller: everything that lives on the event loop, wired together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from rlax_plugin.build import Registry
from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.dashboard import Dashboard
from rlax_plugin.controller.dispatch import Dispatcher, wait_for_worker
from rlax_plugin.controller.evaluation import Evaluator
from rlax_plugin.controller.fleet import Fleet, Worker
from rlax_plugin.controller.flow import Advantage, Flow
from rlax_plugin.controller.link import FinishedStep
from rlax_plugin.controller.metrics import RunStats, Summarise, step_metrics
from rlax_plugin.controller.pass_rates import PassRateTable
from rlax_plugin.controller.publisher import Publisher
from rlax_plugin.controller.records import RolloutWriter, write_json
from rlax_plugin.controller.rewards import RewardPool
from rlax_plugin.errors import TrainingError
from rlax_plugin.parameter_server import ParameterServer, ParameterServerClient
from rlax_plugin.protocols import BuildContext, Launcher, Tracker
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.statistics import Estimate
from rlax_plugin.types import Group, WeightVersion
from rlax_plugin.wire import SERVER_OPTIONS


class Controller:
    """Owns the stages of one run. All methods run on the event loop unless they say otherwise.

    Args:
      argv: config path and overrides, as workers are to be started with.
      last_step: the run's last training step.
    """

    def __init__(
        self,
        *,
        context: BuildContext,
        registry: Registry,
        argv: tuple[str, ...],
        config_hash: str,
        last_step: int,
        dashboard: Dashboard,
        advantage: Callable[[], Advantage],
        summarise: Summarise,
    ):
        self.section: RlaxSection = context.section
        self._context, self._registry, self._argv = context, registry, argv
        self._config_hash, self._last_step = config_hash, last_step
        self.dashboard = dashboard
        self._advantage, self._summarise = advantage, summarise
        self.run_dir: Path = context.run_dir
        self.stats = RunStats()
        self.latest_version = -1
        self.versions_published = 0
        self.before: dict[int, Estimate] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._worker_ready = asyncio.Event()
        self._closing = False

    # --- start ---------------------------------------------------------------------------------

    def _part(self, kind: str, choice: Any, key: str) -> Any:
        return self._registry.part(kind, choice, key, self._context)

    async def start(self) -> None:
        """Brings up the reward pool, the endpoints and the workers."""
        s = self.section
        self.rewards = RewardPool(s, self.run_dir)
        self.rates = PassRateTable(s.curation.pass_rate_half_life)
        self.store = self._part("weight_store", s.weights.store, "rlax.weights.store")
        self._source = self._part("prompt_source", s.prompt_source, "rlax.prompt_source")
        sampler = self._part("sampler", s.curation.sampler, "rlax.curation.sampler")
        gates = [
            self._part("gate", choice, f"rlax.curation.gates.{i}")
            for i, choice in enumerate(s.curation.gates)
        ]
        self.trackers: list[Tracker] = [
            self._part("tracker", choice, f"rlax.trackers.{i}")
            for i, choice in enumerate(s.trackers)
        ]
        self.launcher: Launcher = self._part("launcher", s.launcher, "rlax.launcher")
        self.records = RolloutWriter(self.run_dir / "rollouts")
        self._metrics_file = (self.run_dir / "metrics.jsonl").open("a", buffering=1)

        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        port = self._server.add_insecure_port(f"{s.network.host}:{s.network.port}")
        self.address = f"{s.network.host}:{port}"
        if s.weights.parameter_server == "embedded":
            self._parameters = ParameterServer(
                store=self.store, keep=s.weights.keep, lease_s=s.deadlines.lease_s
            )
            self._parameters.add_to(self._server)
            parameter_address = self.address
            self._announce = self._parameters.publish
        else:
            parameter_address = s.weights.parameter_server
            self._client = ParameterServerClient(parameter_address, rpc_s=s.deadlines.rpc_s)
            self._announce = self._client.publish
        self.fleet = Fleet(
            deadlines=s.deadlines,
            config_hash=self._config_hash,
            parameter_server=parameter_address,
            latest_version=lambda: self.latest_version,
            on_ready=self._on_ready,
            on_lost=self._on_lost,
        )
        rpc.add_FleetServicer_to_server(self.fleet, self._server)
        self.dispatcher = Dispatcher(
            self.fleet, s.deadlines, refresh=lambda request: self.flow.refresh(request)
        )
        self.flow = Flow(
            section=s,
            source=self._source,
            sampler=sampler,
            gates=gates,
            advantage=self._advantage(),
            dispatcher=self.dispatcher,
            rewards=self.rewards,
            rates=self.rates,
            latest_version=lambda: self.latest_version,
            on_scored=self._on_scored,
        )
        await self._server.start()
        await asyncio.gather(
            self.rewards.start(), self.launcher.start(self._argv, self.address, self.run_dir)
        )
        self._spawn(self.fleet.watch())

    def _spawn(self, work: Any) -> None:
        """Runs work whose failure must stop the run."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(error)

        task.add_done_callback(ended)

    def fail(self, error: BaseException) -> None:
        """Stops the run: the trainer's next wait raises ``error``."""
        self.flow.fail(error)

    def make_publisher(self, loop: asyncio.AbstractEventLoop, directory: str) -> Publisher:
        return Publisher(
            loop=loop,
            store=self.store,
            directory=directory,
            announce=self._announce,
            on_published=self._on_published,
            on_error=self.fail,
            deadline_s=self.section.deadlines.weights_s,
        )

    # --- events --------------------------------------------------------------------------------

    def _hook(self, name: str, **arguments: Any) -> None:
        getattr(self._registry.manager.hook, name)(**arguments)

    def _on_ready(self, worker: Worker) -> None:
        self._worker_ready.set()
        self.dispatcher.wake()

    def _on_lost(self, worker: Worker, reason: str) -> None:
        if not self._closing:
            self.dashboard.message(f"worker {worker.name} lost: {reason}")
            self._hook("rlax_on_worker_lost", worker=worker.name, reason=reason)

    def _on_scored(self, group: Group, refused: str | None) -> None:
        self._hook("rlax_on_group_scored", group=group, refused=refused)

    def _on_published(self, version: WeightVersion) -> None:
        self.latest_version = version.version
        self.versions_published += 1
        self._hook("rlax_on_weights_published", version=version)
        self.flow.wake()

    def weights_exist(self, step: int) -> None:
        """The trainer has handed over its first weights, of ``step``: begin."""
        self._spawn(self._begin(step))

    async def _begin(self, step: int) -> None:
        if step > 0:
            self._restore(step)
        self.dashboard.phase("waiting for workers")
        await wait_for_worker(self.fleet, self._worker_ready, self.section.deadlines.startup_s)
        self._hook("rlax_on_run_start", run_dir=str(self.run_dir), config_hash=self._config_hash)
        self.before = self._recorded_evaluation("before")
        if not self.before:
            self.before = await self.evaluate("before", step)
        self.stats.training_begins()
        self.dashboard.phase("training", self._last_step)
        self.flow.start(step + 1, self._last_step)

    def step_finished(self, done: FinishedStep, publish_s: float) -> None:
        """Takes a finished step: metrics, records, display."""
        metrics = step_metrics(
            done, self._summarise, workers=len(self.fleet.workers), publish_s=publish_s
        )
        self.stats.add(metrics)
        self._metrics_file.write(json.dumps({"step": done.step, **metrics}) + "\n")
        self.records.add(done.step, done.stats.scored)
        for tracker in self.trackers:
            tracker.log(done.step, metrics)
        self._hook("rlax_on_step_end", step=done.step, metrics=metrics)
        self.dashboard.step(done.step, metrics, self.latest_version, self.rates.histogram())

    # --- evaluation ----------------------------------------------------------------------------

    async def evaluate(self, name: str, version: int) -> dict[int, Estimate]:
        """Evaluates at a version and records the result under ``evaluation/<name>.json``."""
        settings = self.section.evaluation
        if settings.problems == 0:
            return {}
        self.dashboard.phase(f"evaluating {name} training", settings.problems)
        evaluator = Evaluator(
            self.section, self._source, self.dispatcher, self.rewards, self.flow.decode
        )
        found = await evaluator.run(version, self.dashboard.advance)
        self.dashboard.estimates(f"{name} training", found)
        document = {"version": version, **{f"pass_at_{k}": e.to_json() for k, e in found.items()}}
        write_json(self.run_dir / "evaluation" / f"{name}.json", document)
        return found

    def _recorded_evaluation(self, name: str) -> dict[int, Estimate]:
        path = self.run_dir / "evaluation" / f"{name}.json"
        if not path.exists():
            return {}
        document = json.loads(path.read_text())
        return {
            int(key.removeprefix("pass_at_")): Estimate.from_json(value)
            for key, value in document.items()
            if key.startswith("pass_at_")
        }

    # --- state ---------------------------------------------------------------------------------

    def _snapshot_path(self, step: int) -> Path:
        return self.run_dir / "controller" / f"{step:08d}.json"

    def snapshot(self, step: int) -> None:
        """Saves the controller's state beside the trainer's checkpoint of ``step``."""
        write_json(self._snapshot_path(step), self.flow.state())

    def _restore(self, step: int) -> None:
        path = self._snapshot_path(step)
        if not path.exists():
            raise TrainingError(
                f"the trainer resumed at step {step}, but {path} is missing: without the "
                "controller's state prompts would repeat. Start a new run_name, or remove the "
                "checkpoints that are newer than the newest snapshot"
            )
        self.flow.restore(json.loads(path.read_text()))
        for line in (self.run_dir / "metrics.jsonl").read_text().splitlines():
            metrics: Mapping[str, float] = json.loads(line)
            if metrics["step"] <= step:
                self.stats.add({k: v for k, v in metrics.items() if k != "step"})
        self.dashboard.message(f"resuming after step {step}")

    # --- end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends everything that was started, whatever state it is in."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "flow"):
            await self.flow.stop()
            await self.dispatcher.close()
        if hasattr(self, "launcher"):
            await self.launcher.stop()
            await self.fleet.dismiss()
            await self.fleet.close()
            await self._server.stop(grace=None)
            self.records.close()
            self._metrics_file.close()
            for tracker in self.trackers:
                tracker.close()
        if hasattr(self, "rewards"):
            await self.rewards.close()
