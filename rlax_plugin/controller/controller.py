"""The controller: everything that lives on the event loop, wired together."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rlax_plugin.build import Registry
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.closing import Closing
from rlax_plugin.controller.flow import Flow
from rlax_plugin.controller.generation import Generation
from rlax_plugin.controller.observers import Observers, chosen_observers
from rlax_plugin.controller.pass_rates import PassRateTable
from rlax_plugin.controller.recovery import Recovery, snapshot, snapshot_name
from rlax_plugin.controller.run_state import RunState
from rlax_plugin.errors import DeadlineError, TrainingError
from rlax_plugin.evaluation.periodic import PeriodicEvaluation
from rlax_plugin.evaluation.result import Evaluated, record, recorded
from rlax_plugin.metrics.dashboard import Dashboard
from rlax_plugin.metrics.exporter import PrometheusTracker
from rlax_plugin.metrics.file import MetricsFile
from rlax_plugin.metrics.step import (
    FinishedStep,
    RunStats,
    StepStats,
    Summarise,
    step_metrics,
)
from rlax_plugin.objective.advantages import AdvantageSlot
from rlax_plugin.ports.protocols import BuildContext, Tracker, WeightStore
from rlax_plugin.records import endpoints
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.ledger import Ledger
from rlax_plugin.records.recorder import Recorder
from rlax_plugin.rollouts.fleet import Worker
from rlax_plugin.rollouts.requests import training_prompts
from rlax_plugin.text.harmless import harmless
from rlax_plugin.types import Descent, Group, WeightVersion
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.host_fingerprint import digest
from rlax_plugin.weights.kept import listed_versions, record_versions
from rlax_plugin.weights.publisher import Publisher
from rlax_plugin.weights.service import ParameterServer


class Controller:
    """Owns the stages of one run. All methods run on the event loop unless they say otherwise.

    Args:
      argv: config path and overrides, as workers are to be started with.
      origin: whose weights the run starts from; None: its own.
      last_step: the run's last training step.
      advantage_slot: makes the objective's; called once, after the reward pool is there.
    """

    def __init__(
        self,
        *,
        context: BuildContext,
        files: RunFiles,
        registry: Registry,
        argv: tuple[str, ...],
        config_hash: str,
        origin: Descent | None,
        last_step: int,
        dashboard: Dashboard,
        advantage_slot: Callable[[], AdvantageSlot],
        summarise: Summarise,
    ):
        self.section: RlaxSection = context.section
        self._context, self._registry, self._argv = context, registry, argv
        self._config_hash, self._last_step = config_hash, last_step
        # A ledger that tells of other first weights is another run's.
        self._computes = config_hash if origin is None else f"{config_hash} from {origin}"
        self.dashboard = dashboard
        self._advantage_slot, self._summarise = advantage_slot, summarise
        self.files = files
        self._state_dir: Path = context.run_dir
        self.stats = RunStats()
        self.latest_version = -1
        self.versions_published = 0
        self.before: Evaluated | None = None
        self._supervision = Supervision(self._on_failure)
        self.fail = self._supervision.fail
        self.unless_failed = self._supervision.unless_failed
        self._started = Closing(dashboard.message)
        self._closing = False
        self._begun: asyncio.Task[None] | None = None
        self._writing: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self._replaced_before = 0  # reward processes, at the last step's end

    # --- start ---------------------------------------------------------------------------------

    def _part(self, kind: str, choice: Any, key: str) -> Any:
        return self._registry.part(kind, choice, key, self._context)

    async def start(self) -> None:
        """Brings up the reward pool, the endpoints and the workers.

        Raises:
          RlaxError: something did not start; ``close`` ends what did.
        """
        self._loop = asyncio.get_running_loop()
        self._supervision.watch_loop()
        await self._supervision.own(self._start())

    async def _start(self) -> None:
        s, undo = self.section, self._started
        store = self._part("weight_store", s.weights.store, "rlax.weights.store")
        self.store: WeightStore = store
        sampler = self._part("sampler", s.curation.sampler, "rlax.curation.sampler")
        filters = [
            self._part("filter", choice, f"rlax.curation.filters.{i}")
            for i, choice in enumerate(s.curation.filters)
        ]
        chosen = chosen_observers(self._registry, self._context)
        self.observers = Observers(self._registry.manager, chosen, self.fail)
        self.trackers: list[Tracker] = []
        undo.ends_trackers(self.trackers, s.trackers)
        for i, choice in enumerate(s.trackers):
            self.trackers.append(self._part("tracker", choice, f"rlax.trackers.{i}"))
        self._ledger = Ledger(self._state_dir / "ledger.sqlite", run=self._computes)
        self._recorder = Recorder(
            self.files, self._ledger, lambda e: self._loop.call_soon_threadsafe(self.fail, e)
        )
        undo.callback(self._recorder.close)
        self._metrics = MetricsFile(self.files, self._state_dir)
        undo.callback(self._metrics.close)

        parameters: ParameterServer | ParameterServerClient
        if (address := s.weights.parameter_server) == "embedded":
            parameters = ParameterServer(
                store=store,
                keep=s.weights.keep,
                lease_s=s.deadlines.lease_s,
                record=functools.partial(record_versions, self.files),
                listed=await asyncio.to_thread(
                    listed_versions, self.files, self._weights_directory
                ),
            )
            self._writing = parameters.writing
        else:
            parameters = ParameterServerClient(address, rpc_s=s.deadlines.rpc_s)
        undo.push_async_callback(parameters.close)
        self._announce = parameters.publish
        generation = self._generation = Generation(
            self._context,
            self._registry,
            config_hash=self._config_hash,
            parameters=parameters if isinstance(parameters, ParameterServer) else address,
            latest_version=lambda: self.latest_version,
            undo=undo,
            note=self.dashboard.message,
            refresh=lambda request: self.flow.refresh(request),
            on_reissued=lambda request, reason: self.flow.reissued(request, reason),
            on_lost=self._on_lost,
            on_quarantined=self._on_quarantined,
            warn=self.dashboard.message,
        )
        self.pace = generation.pace
        self.source, self.fleet = generation.source, generation.fleet
        self.launcher = generation.launcher
        rates = PassRateTable(s.curation.pass_rate_half_life)
        self.run_state = RunState(s, training_prompts(s, self.source), sampler, rates)
        self.flow = Flow(
            section=s,
            source=self.source,
            filters=filters,
            advantage_slot=self._advantage_slot(),
            dispatcher=generation.dispatcher,
            rewards=generation.rewards,
            run_state=self.run_state,
            recorder=self._recorder,
            latest_version=lambda: self.latest_version,
            on_scored=self._on_scored,
        )
        reader = ParameterServerClient(generation.parameter_server, rpc_s=s.deadlines.rpc_s)
        undo.push_async_callback(reader.close)
        self.periodic = PeriodicEvaluation(
            every=s.evaluation.every if generation.evaluator.sets else 0,
            last_step=self._last_step,
            evaluator=generation.evaluator,
            fleet=self.fleet,
            client=reader,
            recorder=self._recorder,
            files=self.files,
            spawn=self._supervision.spawn,
            note=self.dashboard.message,
            show=self.dashboard.estimates,
        )
        if s.network.prometheus_port is not None:
            exporter = PrometheusTracker(self, s.network)
            self.trackers.append(exporter)
        undo.callback(endpoints.remove_endpoints, self._state_dir)
        await generation.start(self._supervision.spawn)
        undo.push_async_callback(self.flow.stop)
        reached_at = endpoints.Endpoints(generation.address, generation.parameter_server)
        endpoints.write_endpoints(self._state_dir, reached_at)

    def _on_failure(self, error: BaseException) -> None:
        if hasattr(self, "flow"):
            self.flow.fail(error)

    @property
    def _weights_directory(self) -> str:
        """Where the run's versions are written."""
        path = self.section.weights.path
        return RunFiles(path).location() if path else self.files.location("weights")

    def make_publisher(self) -> Publisher:
        """The way from the trainer's thread to the weight store. Any thread."""
        return Publisher(
            loop=self._loop,
            store=self.store,
            directory=self._weights_directory,
            writing=self._writing,
            announce=self._announce,
            on_published=self._on_published,
            on_error=self.fail,
            deadline_s=self.section.deadlines.weights_s,
            pace=self.pace,
        )

    # --- events --------------------------------------------------------------------------------

    def _on_lost(self, worker: Worker, reason: str) -> None:
        if not self._closing:
            self.dashboard.message(f"worker {worker.name} lost: {reason}")
            self.observers.notify("worker_lost", worker=worker.name, reason=reason)

    def _on_quarantined(self, worker: str, reason: str) -> None:
        self.dashboard.message(f"worker {worker} is quarantined: {reason}")
        self.flow.distrust(worker)

    def _on_scored(self, group: Group, rejected: str | None, again: bool) -> None:
        tell = self.observers.notify_again if again else self.observers.notify
        fresh = dataclasses.replace(group, advantages=None)  # a recorded one may have them by now
        tell("group_scored", group=fresh, rejected=rejected)

    def _on_published(self, version: WeightVersion) -> None:
        self.latest_version = version.version
        self.versions_published += 1
        self.observers.notify("weights_published", version=version)
        prints = {name: spec.fingerprint for name, spec in version.tensors.items()}
        self.flow.published(version.version, digest(prints))
        if self._begun is not None and self._begun.done():
            self.periodic.published(version.version)

    async def run_failed(self, error: Exception) -> None:
        """Tells the plug-ins, before everything is shut down."""
        self.observers.notify("run_error", error=harmless(str(error)))

    def weights_exist(self, step: int) -> None:
        """The trainer has handed over its first weights, of ``step``: begin."""
        self._begun = self._supervision.spawn(self._begin(step))

    async def _begin(self, step: int) -> None:
        deadline_s = self.section.deadlines.startup_s
        try:
            async with asyncio.timeout(deadline_s):
                recovery = await self._recover(step)
        except TimeoutError:
            what = "reading the run's records"
            raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s") from None
        self.dashboard.phase("waiting for workers")
        await self._generation.wait_for_worker()
        self.observers.notify("run_start", run_dir=self.files.url, config_hash=self._config_hash)
        self.before = await self._recorder.call(recorded, self.files, "before")
        if self.before is None:
            self.before = await self.evaluate("before", step)
        self.stats.training_begins()
        self.dashboard.phase("training", self._last_step)
        await self.flow.start(recovery, self._last_step)
        self.periodic.published(step)

    async def begun(self) -> None:
        """Returns once training may begin; at once if the trainer has handed over no weights."""
        if self._begun is not None:
            await asyncio.shield(self._begun)

    async def next_groups(self, step: int) -> tuple[tuple[Group, ...], StepStats]:
        """Waits for the groups of a step; they are on disk when it returns."""
        return await self.flow.batch(step)

    def step_finished(self, done: FinishedStep, publish_s: float) -> None:
        """Takes a finished step: metrics, records, display."""
        metrics = self._step_metrics(done, publish_s) | self.periodic.take_metrics()
        self._replaced_before = self._generation.rewards.replaced
        self.stats.add(metrics)
        self._metrics.add(done.step, metrics)
        for tracker in self.trackers:
            tracker.log(done.step, metrics)
        self.observers.notify("step_end", step=done.step, metrics=metrics)
        self.dashboard.step(
            done.step, metrics, self.latest_version, self.run_state.rates.histogram()
        )

    def _step_metrics(self, done: FinishedStep, publish_s: float) -> dict[str, float]:
        return step_metrics(
            done,
            self.section,
            self._summarise,
            workers=len(self.fleet.workers),
            publish_s=publish_s,
            replaced=self._generation.rewards.replaced - self._replaced_before,
        )

    # --- evaluation ----------------------------------------------------------------------------

    async def evaluate(self, name: str, version: int) -> Evaluated | None:
        """Evaluates at a version and records the result under ``evaluation/<name>.json``."""
        evaluator = self._generation.evaluator
        if not evaluator.sets:
            return None
        self.dashboard.phase(f"evaluating {name} training", evaluator.problems)
        found = await evaluator.run(version, self.dashboard.advance)
        self.dashboard.estimates(f"{name} training", found)
        deadline_s = self.section.deadlines.weights_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._recorder.call(record, self.files, name, found)
        except TimeoutError:
            what = "writing an evaluation"
            raise DeadlineError(what, deadline_s, "rlax.deadlines.weights_s") from None
        return found

    async def end_periodic(self, *, stopped: bool) -> None:
        """Waits for the evaluation that is still running after training, or ends it."""
        if stopped:
            await self.periodic.cancel()
            return
        await self.periodic.finish()
        if metrics := self.periodic.take_metrics():  # too late for the line of a step
            for tracker in self.trackers:
                tracker.log(self._last_step, metrics)

    # --- state ---------------------------------------------------------------------------------

    async def snapshot(self, unfinished: FinishedStep) -> None:
        """Saves the controller's state, before the trainer's checkpoint of a step."""
        observers = self.observers.state()  # of the same moment as the run state
        commit, run_state = await self.flow.commit()
        metrics = self._step_metrics(unfinished, publish_s=0.0)
        step = unfinished.step
        if run_state["next_step"] != step + 1:
            raise TrainingError(
                f"a checkpoint of step {step} is asked for, but the batch of step "
                f"{run_state['next_step'] - 1} was the last: no run could be resumed from it"
            )
        document = snapshot(step, commit.number, commit.checksum, run_state, metrics, observers)
        reached(FaultPoint.SNAPSHOT_BEGUN)
        await self._recorder.call(self._save, step, document)

    def _save(self, step: int, document: dict[str, Any]) -> None:
        self.files.put(snapshot_name(step), json.dumps(document).encode())
        reached(FaultPoint.SNAPSHOT_WRITTEN)
        self._metrics.upload()

    async def finish(self) -> None:
        """Returns once everything that happened is in the run's directory."""
        await self.flow.commit()
        await self._recorder.call(self._metrics.upload)
        reached(FaultPoint.RUN_FINISHED)

    async def _recover(self, step: int) -> Recovery:
        """Goes back to the trainer's checkpoint of ``step``; recorded steps are done again."""
        known = await self._recorder.call(self._metrics.rewind, step)
        recovery = await self._recorder.call(
            Recovery,
            step,
            run_state=self.run_state,
            files=self.files,
            ledger=self._ledger,
            recorder=self._recorder,
        )
        if step and step not in {metrics["step"] for metrics in known}:
            # Killed between the checkpoint and the report of its step.
            self._metrics.add(step, recovery.metrics)
            known.append(recovery.metrics)
        self.observers.restore(recovery.observers)
        if self.observers.last_step < step:  # its end came after the snapshot
            metrics = {k: v for k, v in known[-1].items() if k != "step"}
            self.observers.notify_again("step_end", step=step, metrics=metrics)
        for metrics in known:
            self.stats.add({k: v for k, v in metrics.items() if k != "step"})
        if recovery.anything:
            self.dashboard.message(f"resuming after step {step}")
        if recovery.last_step is not None:
            what = f"steps {step + 1} to {recovery.last_step}"
            self.dashboard.message(f"{what} are trained again, on their recorded batches")
        return recovery

    # --- end -----------------------------------------------------------------------------------

    @property
    def close_s(self) -> float:
        """The most that ``close`` may take."""
        return self._started.deadline_s

    async def close(self) -> None:
        """Ends everything that was started, whatever state it is in."""
        self._closing = True
        await self._supervision.close()
        await self._started.aclose()
