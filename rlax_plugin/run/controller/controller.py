"""The controller of a run, from its first weights to its last record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import DeadlineError, TrainingError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.activity import ends_at
from rlax_plugin.base.types import EMPTY, Descent, TrainBatch, WeightVersion
from rlax_plugin.config import Algorithm, RlaxSection, Schedule
from rlax_plugin.data.curation.pass_rate_files import About
from rlax_plugin.data.curation.pass_rate_table import RateColumns
from rlax_plugin.ports.protocols import Tracker
from rlax_plugin.rollout.fleet.fleet import FleetListener, Worker
from rlax_plugin.rpc.transport.prometheus import Figures
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.controller.flow import Flow
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.controller.limits import GAP, GAP_STEPS, WorkerGaps, gap_error, gaps_of_workers
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.run.controller.step_figures import StepFigures
from rlax_plugin.run.controller.timeline import Timeline
from rlax_plugin.run.display.dashboard import Dashboard
from rlax_plugin.run.display.waiting import ASSUME
from rlax_plugin.run.evaluation.periodic import PeriodicEvaluation
from rlax_plugin.run.evaluation.result import Evaluated, record, recorded
from rlax_plugin.run.metrics.file import MetricsFile
from rlax_plugin.run.metrics.run_stats import RunStats
from rlax_plugin.run.metrics.spans import SpansFile
from rlax_plugin.run.metrics.step import FinishedStep, StepStats
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.recorder import Recorder
from rlax_plugin.run.state.recovery import Recovery
from rlax_plugin.run.state.retention import Retaining
from rlax_plugin.run.state.snapshots import snapshot, write_snapshot
from rlax_plugin.weights.fingerprint import digest

log = logging.getLogger("rlax.controller")


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The facts about a run that are fixed before any part of it starts.

    Attributes:
      argv: of the command: config file and overrides.
      origin: the run whose weights this run starts from; None: its own.
      last_step: the run's last training step.
      schedules: dotted key -> schedule of each number of the config that changes.
    """

    builder: Builder
    files: RunFiles
    argv: tuple[str, ...]
    config_hash: str
    origin: Descent | None
    last_step: int
    dashboard: Dashboard
    schedules: Mapping[str, Schedule] = EMPTY

    @property
    def section(self) -> RlaxSection:
        return self.builder.section

    @property
    def computes(self) -> str:
        """Identifies the run's computation; a ledger with other first weights is another run's."""
        return f"{self.config_hash} from {self.origin}" if self.origin else self.config_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The files and trackers that record the events of a run.

    Attributes:
      trackers: of the config; they receive the metrics, as ``metrics`` does.
      about_rates: the settings under which pass rates are measured.
      retaining: removes records that are not kept.
      checkpoints: returns step -> name below ``checkpoints/`` of the trainer's, as far as known.
    """

    ledger: Ledger
    recorder: Recorder
    metrics: MetricsFile
    spans: SpansFile
    trackers: list[Tracker]
    about_rates: About
    retaining: Retaining
    checkpoints: Callable[[], Mapping[int, str]]


_MOST_AT_FAULT = 2  # processes that may find a part of a version wrong, before the file is


class Controller(FleetListener):
    """Knows all stages of one run, and learns of each event in it.

    ``assembly.assemble`` makes one. All methods run on the event loop.

    Args:
      algorithm: of the objective, preset and config merged.

    Attributes:
      stats: of the steps that are finished.
      machine: metrics ``machine/...`` for the next step; any thread replaces them as a whole.
      before: result of the evaluation before training; None until it is measured.
      damaged: sentences about records that this process has found damaged and does without.
    """

    def __init__(
        self,
        setup: RunSetup,
        *,
        supervision: Supervision,
        observers: Observers,
        records: Records,
        generation: Generation,
        flow: Flow,
        periodic: PeriodicEvaluation,
        algorithm: Algorithm,
    ):
        self._setup, self._supervision, self._observers = setup, supervision, observers
        self.section, self.files, self.dashboard = setup.section, setup.files, setup.dashboard
        self.run_state, self._flow = flow.run_state, flow
        self.generation, self.periodic, self.algorithm = generation, periodic, algorithm
        self.fleet = generation.fleet
        self._ledger, self._recorder = records.ledger, records.recorder
        self._metrics, self._trackers = records.metrics, records.trackers
        self._retaining, self._about_rates = records.retaining, records.about_rates
        self._spans, self._checkpoints = records.spans, records.checkpoints
        self._timeline = Timeline(generation.fleet, records.spans)
        self._figures = StepFigures(self.section, generation, setup.schedules)
        self._gaps = WorkerGaps(self.fleet, setup.dashboard.message)
        self._kept = {GAP: GAP_STEPS}
        self.stats = RunStats(self._kept)
        self.before: Evaluated | None = None
        self.machine: dict[str, float] = {}
        self.damaged: list[str] = []
        self._begun: asyncio.Task[None] | None = None  # once there are weights
        self._ending: asyncio.Task[None] | None = None  # of the newest finished step
        self._visible: WeightVersion | None = None  # the newest
        self._found_wrong: dict[str, set[str]] = {}  # path -> processes, of its first part
        self._again: set[int] = set()  # versions that have been published again
        self._damaged = -1  # the version that is to be published again
        self._is_damaged = asyncio.Event()
        self._batch: asyncio.Task[tuple[TrainBatch, StepStats]] | None = None

    @property
    def ready(self) -> str:
        """The part of the next batch that is ready, such as ``3 of 8 groups``."""
        return self._flow.ready

    def counts(self) -> Figures:
        """Returns name -> figure of the run for Prometheus; on the exporter's thread."""
        return {
            "weight_version": self.fleet.newest.number,
            "weight_versions_published_total": self.stats.versions_published,
            "groups_reissued_total": self.run_state.totals.reissued,
            "workers_seen_total": len(self.fleet.identities.names),
            "workers_quarantined_total": len(self.fleet.identities.quarantined),
        }

    def worker_figures(self) -> Mapping[str, Figures]:
        """Returns name -> figures of each worker for Prometheus; on the exporter's thread."""
        return {
            worker.name: {
                **worker.figures,
                "weight_version": worker.version,
                "draining": worker.draining,
                "assigned": worker.assigned,
            }
            for worker in list(self.fleet.workers.values())
        }

    # --- events --------------------------------------------------------------------------------

    def worker_lost(self, worker: Worker, reason: str) -> None:
        if not self._supervision.closing:
            self.dashboard.message(f"worker {worker.name} lost: {reason}")
            self._observers.notify("worker_lost", worker=worker.name, reason=reason)

    def found_damaged(self, what: str) -> None:
        """Shows a record that is damaged and that the run does without; any thread may call."""
        log.warning("%s", what)
        self.dashboard.message(f"warning: {what}")
        self.damaged.append(what)

    def worker_quarantined(self, name: str, reason: str) -> None:
        self.dashboard.message(f"worker {name} is quarantined: {reason}")
        if not self._supervision.closing:
            self._flow.distrust(name)

    def version_damaged(self, path: str, process: str) -> None:
        """Asks for a version to be published again once two processes have found it wrong.

        One may be at fault itself; of two the file is, or the trainer. So a version is published
        again once: what is wrong a second time is wrong in what the trainer has.
        """
        version = self._visible
        if version is None or path not in version.all_paths or version.version in self._again:
            return
        self._found_wrong.setdefault(path, set()).add(process)
        if len(self._found_wrong[path]) >= _MOST_AT_FAULT:  # or a later version of the part
            self.dashboard.message(
                f"two worker processes have found version {version.version} wrong in {path}"
            )
            self._damaged = version.version
            self._is_damaged.set()

    def publishes_again(self, version: int) -> None:
        """Called before a version is published under its number once more."""
        self._again.add(version)
        self.dashboard.message(f"version {version} is published again")

    def visible(self, version: WeightVersion) -> None:
        """Called when a worker can load a weight version, although it may not be written yet."""
        if self._supervision.closing:
            return  # it was made when the run ended
        if self._visible is None or self._visible.parts[0].path != version.parts[0].path:
            self._found_wrong.clear()
        self._visible = version
        if version.version in self._again:
            return  # all others have heard of it
        self.fleet.newest.number = version.version
        self.stats.versions_published += 1
        prints = {name: spec.fingerprint for name, spec in version.tensors.items()}
        self._flow.published(version.version, digest(prints))

    def published(self, version: WeightVersion) -> None:
        """Called when every reader can load a weight version: it is written, unless none asks."""
        if self._supervision.closing:
            return  # it was still being written when the run ended
        self._visible = version  # its paths may be others than those it was offered with
        if version.version in self._again:
            return  # it was written before
        self._observers.notify("weights_published", version=version)
        if self._begun is not None and self._begun.done():
            self.periodic.published(version.version)

    def converted(self, version: WeightVersion) -> None:
        """Called when a published version has gained a converted part."""
        if self._visible is not None and self._visible.paths == version.paths:
            self._visible = version

    # --- training ------------------------------------------------------------------------------

    def weights_exist(self, step: int) -> None:
        """Begins the run, once the trainer has handed over its first weights, those of ``step``."""
        self._begun = self._supervision.spawn(self._begin(step))

    async def _begin(self, step: int) -> None:
        deadline_s = self.section.deadlines.startup_s
        try:
            async with asyncio.timeout(deadline_s):
                recovery = await self._recover(step)
        except TimeoutError:
            what = "reading the run's records"
            raise DeadlineError(what, deadline_s, "rlax.deadlines.startup_s") from None
        if not self.section.needs_no_workers:
            await self.generation.wait_for_worker(self.dashboard.waiting)
        self._observers.notify(
            "run_start", run_dir=self.files.url, config_hash=self._setup.config_hash
        )
        self.before = await self._recorder.call(recorded, self.files, "before")
        if self.before is None:
            self.before = await self.evaluate("before", step)
        self.stats.training_begins()
        self._wait_for_first_batch()
        await self._flow.start(recovery)
        self.periodic.published(step)

    def _wait_for_first_batch(self) -> None:
        deadlines = self.section.deadlines
        both_s = deadlines.batch_s + deadlines.startup_s
        key = "rlax.deadlines.batch_s + startup_s"
        rollouts = self.section.rollouts
        samples = rollouts.groups_per_step * rollouts.group_size
        self.dashboard.waiting.begin(
            "generating the first batch",
            assumed=(ASSUME, self.generation.pace.generating_s(samples)),
            ends=ends_at(key, both_s),
        )
        self._flow.show_first = self.dashboard.waiting.progress

    async def begun(self) -> int | None:
        """Waits until the evaluation before training is done and groups are issued.

        Returns at once if the trainer has handed over no weights.

        Returns:
          The version that is to be published again, before this is called again; None: it has
          begun.

        Raises:
          RlaxError: the run has failed meanwhile.
        """
        if self._begun is None:
            return None
        begun = asyncio.ensure_future(self._supervision.unless_failed(_ended(self._begun)))
        if (damaged := await self._damaged_before(begun)) is None:
            begun.result()
        else:
            begun.cancel()
        return damaged

    async def next_batch(self, step: int) -> tuple[TrainBatch, StepStats] | int:
        """Waits for the batch of a step; see ``Flow.batch``.

        Returns:
          The batch; or the version that is to be published again, before this is called again.
        """
        if self._batch is None:
            self._batch = asyncio.ensure_future(self._next_batch(step))
        if (damaged := await self._damaged_before(self._batch)) is not None:
            return damaged
        batch, self._batch = self._batch, None
        return batch.result()

    async def _damaged_before(self, work: asyncio.Future[Any]) -> int | None:
        """Returns the version that was found wrong while some work goes on; None: it has ended."""
        damaged = asyncio.ensure_future(self._is_damaged.wait())
        try:
            await asyncio.wait({work, damaged}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # it is late
            work.cancel()
            raise
        finally:
            damaged.cancel()
        if work.done():
            return None
        self._is_damaged.clear()
        return self._damaged

    async def _next_batch(self, step: int) -> tuple[TrainBatch, StepStats]:
        await self._steps_ended()
        with self.generation.dispatcher.backlog.waited_for():
            return await self._flow.batch(step)

    def step_finished(self, done: FinishedStep) -> None:
        """Takes a finished step; its metrics are computed before the next one begins."""
        self._ending = self._supervision.spawn(self._end(done))

    async def _steps_ended(self) -> None:
        """Waits until all finished steps are recorded."""
        if self._ending is not None:
            await self._supervision.unless_failed(_ended(self._ending))

    async def _end(self, done: FinishedStep) -> None:
        """Ends a step: metrics, records, display."""
        machine, self.machine = self.machine, {}
        metrics = await self._figures.take(done, self.periodic.take_metrics() | machine)
        temperature = self.section.rollouts.temperature_at(done.step)
        gaps = await asyncio.to_thread(gaps_of_workers, done, temperature)
        self._gaps.take(gaps, self.run_state.next_id)
        self._tell_stage(done.step, metrics)
        self.stats.add(metrics)
        self._metrics.add(done.step, metrics)
        self._timeline.step_finished(done)
        self._track(done.step, metrics)
        self._observers.notify("step_end", step=done.step, metrics=metrics)
        self.dashboard.step(done.step, metrics, self.fleet.newest.number)
        error = gap_error(metrics, self.stats.newest(GAP), self.section.objective)
        if error is not None:
            self._supervision.fail(error)

    def _tell_stage(self, step: int, metrics: dict[str, float]) -> None:
        over, before = metrics.get("curation/stage", 0), self.stats.newest("curation/stage")
        if over > (before[-1] if before else 0):
            stages = len(self.section.curation.stages)
            begins = f"stage {over + 1:g} of {stages} begins" if over < stages else "the last ends"
            self.dashboard.message(f"step {step}: {over:g} stages are over, {begins}")

    def _track(self, step: int, metrics: dict[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)

    # --- evaluation ----------------------------------------------------------------------------

    async def evaluate(self, name: str, version: int) -> Evaluated | None:
        """Evaluates at a version and records the result under ``evaluation/<name>.json``."""
        evaluator = self.generation.evaluator
        if not evaluator.sets:
            return None
        waiting, group_s = self.dashboard.waiting, self.section.deadlines.group_s
        ends = ends_at("rlax.deadlines.group_s", group_s, " without progress of a problem")
        assumed = ASSUME, self.generation.pace.generating_s(evaluator.samples)
        waiting.begin(f"evaluating {name} training", assumed=assumed, ends=ends)
        found = await evaluator.run(version, self.dashboard.evaluated)
        waiting.end()
        self.dashboard.estimates(f"{name} training", found)
        deadline_s = self.section.deadlines.weights_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._recorder.call(record, self.files, name, found)
        except TimeoutError:
            what = "writing an evaluation"
            raise DeadlineError(what, deadline_s, "rlax.deadlines.weights_s") from None
        return found

    async def evaluate_after(self) -> Evaluated | None:
        """Evaluates the newest weights, once training has ended.

        Raises:
          RlaxError: the run has failed.
        """
        measured = self.evaluate("after", self.fleet.newest.number)
        return await self._supervision.unless_failed(measured)

    async def _end_periodic(self, *, stopped: bool) -> None:
        """Waits for the evaluation that is still running after training, or ends it."""
        if stopped:
            await self.periodic.cancel()
            return
        await self.periodic.finish()
        if metrics := self.periodic.take_metrics():  # too late for the line of a step
            self._track(self._setup.last_step, metrics)

    async def training_ended(self, *, stopped: bool) -> None:
        """Ends generation; waits for an evaluation, or ends it where the run was stopped.

        Raises:
          RlaxError: the run has failed meanwhile.
        """
        self._flow.end()  # what is still under way will not train, and cannot fail the run
        await self._steps_ended()
        await self._supervision.unless_failed(self._end_periodic(stopped=stopped))
        # A run with nothing left to train may still be waiting for its first worker.
        await self.begun()

    # --- state ---------------------------------------------------------------------------------

    async def snapshot(self, unfinished: FinishedStep) -> None:
        """Saves the controller's state, before the trainer's checkpoint of a step."""
        await self._steps_ended()  # the step itself may have: a signal ends a run after a step
        observers = self._observers.state()  # of the same moment as the run state
        commit, saved = await self._flow.commit()
        metrics = await self._figures.so_far(unfinished)
        step = unfinished.step
        if saved.document["next_step"] != step + 1:
            raise TrainingError(
                f"the trainer saves a checkpoint of step {step}, but the batch of step "
                f"{saved.document['next_step'] - 1} was the last: no run could be resumed from it"
            )
        where = (step, commit.number, commit.checksum)
        document = snapshot(*where, saved.document, metrics, observers)
        reached(FaultPoint.SNAPSHOT_BEGUN)
        await self._recorder.call(self._save, document, saved.rates)
        self._supervision.spawn(self._remove_what_is_not_kept())

    async def _remove_what_is_not_kept(self) -> None:
        # In turns, between which the recorder writes what has happened meanwhile.
        while await self._recorder.call(self._retaining.remove_some):
            pass

    def _save(self, document: dict[str, Any], rates: RateColumns) -> None:
        write_snapshot(self.files, document, rates, self.run_state.prompts, self._about_rates)
        reached(FaultPoint.SNAPSHOT_WRITTEN)
        self._metrics.upload()
        self._spans.upload()
        self._retaining.note_checkpoints()

    async def finish(self) -> None:
        """Returns once all events are recorded in the run's directory.

        Raises:
          RlaxError: the run has failed.
        """
        await self._supervision.unless_failed(self._finish())

    async def _finish(self) -> None:
        await self._flow.commit()
        await self._recorder.call(self._metrics.upload)
        await self._recorder.call(self._spans.upload)
        reached(FaultPoint.RUN_FINISHED)

    def _past_steps(
        self, step: int, last: Mapping[str, float]
    ) -> tuple[RunStats, Mapping[str, float]]:
        """Returns the sums over the steps up to a checkpoint's, and the metrics of the last one."""
        stats, metrics = RunStats(self._kept), {}
        for line in self._metrics.rewind(step, last):
            metrics = {name: value for name, value in line.items() if name != "step"}
            stats.add(metrics)
        return stats, metrics

    async def _recover(self, step: int) -> Recovery:
        """Returns to the trainer's checkpoint of ``step``; recorded later steps train again."""
        recovery = await self._recorder.call(
            Recovery,
            step,
            run_state=self.run_state,
            files=self.files,
            ledger=self._ledger,
            recorder=self._recorder,
            checkpoints=self._checkpoints,
            found_damaged=self.found_damaged,
        )
        past, last = await self._recorder.call(self._past_steps, step, recovery.metrics)
        self.stats.begin_after(past)
        self._observers.restore(recovery.observers)
        if self._observers.last_step < step:  # its end was told, if at all, after the snapshot
            self._observers.notify_again("step_end", step=step, metrics=last)
        if recovery.anything:
            self.dashboard.message(f"resuming after step {step}")
        if recovery.last_step is not None:
            what = f"steps {step + 1} to {recovery.last_step}"
            self.dashboard.message(f"{what} are trained again, on their recorded batches")
        return recovery


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)
