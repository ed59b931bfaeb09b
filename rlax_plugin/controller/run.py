"""``rlax train``: one run from start to end, on two threads.

The main thread belongs to the trainer: it alone launches JAX work and takes signals. The controller
lives on an event loop on a second thread. ``Link`` is where they meet.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from rich.console import Console

from rlax_plugin.build import registry_for
from rlax_plugin.concurrency.supervision import LoopThread
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import config_hash, load_section, merged
from rlax_plugin.controller import descent
from rlax_plugin.controller.controller import Controller
from rlax_plugin.controller.preflight import check_start
from rlax_plugin.controller.results import print_results
from rlax_plugin.controller.run_directory import (
    check_same_run,
    finished,
    locked,
    make_state_directory,
    run_directory,
    state_directory,
)
from rlax_plugin.controller.summary import summary
from rlax_plugin.controller.trainer_port import Link, canary_tokens
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.metrics.dashboard import Dashboard
from rlax_plugin.metrics.step import FinishedStep
from rlax_plugin.objective import batches, diagnostics, loss
from rlax_plugin.ports.protocols import BuildContext, Trainer
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.text.command_lines import train_command
from rlax_plugin.text.terminal import console, quiet
from rlax_plugin.types import Descent, Group, TrainBatch
from rlax_plugin.weights.publisher import Publisher

INTERRUPTED = 130


def train(config_path: str, overrides: Sequence[str] = (), wanted: str | None = None) -> int:
    """Runs, or continues, the run that the config describes.

    Args:
      wanted: ``RUN`` or ``RUN@STEP``, another run whose weights it starts from; None: none, or the
        one that was given when it began.

    Returns:
      0 when the run is complete, 130 when it was interrupted and can be continued.

    Raises:
      RlaxError: whatever made it fail; what was computed stays in the run directory.
    """
    began_s = time.perf_counter()
    section, maxtext = load_section(config_path, overrides)
    registry = registry_for(section)
    directory, argv = run_directory(maxtext), (config_path, *overrides)
    check_start(section, maxtext, registry, argv, remote=True)
    files = RunFiles(directory)
    state_dir = state_directory(section, files)
    digest, config = config_hash(config_path, overrides), merged(config_path, overrides)
    check_same_run(files, digest, config, argv)
    origin = descent.decide(files, wanted, registry, section, maxtext)
    make_state_directory(state_dir, section, maxtext)
    updates = section.objective.updates_per_step
    last_step = int(maxtext["steps"]) // updates
    if (document := finished(files, last_step, section.evaluation.problems > 0)) is not None:
        out = console(sys.stdout)
        out.print(f"the run is complete: {document['steps']} steps")
        print_results(out, files, argv, document["steps"], updates)
        return 0
    with locked(state_dir), quiet(state_dir / "logs" / "trainer.log") as out:
        written = {"config": config_path, "overrides": list(overrides), "config_hash": digest}
        try:
            descent.record(files, origin)
            files.put_json("config.json", written)
            files.put(CONFIG, yaml.safe_dump(config).encode())
        except RlaxError as error:
            base = maxtext["base_output_directory"]
            raise ConfigError("base_output_directory", base, str(error)) from error
        reached(FaultPoint.CONFIG_WRITTEN)
        context = BuildContext(
            run_dir=state_dir,
            seed=section.seed,
            section=section,
            maxtext_argv=argv,
            run_url=files.url,
        )
        run = _Run(context, files, registry, digest, origin, last_step, out, began_s)
        with run.signals():
            try:
                return run.execute()
            except KeyboardInterrupt:
                out.print("interrupted")
                out.print(f"continue with:  {train_command(argv)}")
                return INTERRUPTED


class _Run:
    """Holds what ``train`` has started, so that it can end all of it."""

    def __init__(
        self,
        context: BuildContext,
        files: RunFiles,
        registry: Any,
        digest: str,
        origin: Descent | None,
        last_step: int,
        console: Console,
        began_s: float,
    ):
        self._context, self._files = context, files
        self._registry, self._digest, self._origin = registry, digest, origin
        self._section: RlaxSection = context.section
        self._last_step, self._console, self._began_s = last_step, console, began_s
        self._dashboard = Dashboard(console, last_step)
        self._port: Link | None = None
        self._closing = False

    @functools.cached_property
    def _objective(self) -> loss.ObjectiveSlots:
        return self._registry.slots(self._context)

    def _build_batch(self, step: int, groups: tuple[Group, ...]) -> TrainBatch:
        return batches.batch_of(self._section, self._objective.algorithm, step, groups)

    def execute(self) -> int:
        # What it rejects, it rejects before a worker is started.
        trainer: Trainer = self._registry.part(
            "trainer", self._section.trainer, "rlax.trainer", self._context
        )
        if self._origin is not None:
            replaced = descent.start(trainer, self._section.trainer.name, self._origin)
            instead = f", in place of {replaced}" if replaced else ""
            self._console.print(f"the first weights are those of {self._origin}{instead}")
        thread = LoopThread()
        controller = Controller(
            context=self._context,
            files=self._files,
            registry=self._registry,
            argv=self._context.maxtext_argv,
            config_hash=self._digest,
            origin=self._origin,
            last_step=self._last_step,
            dashboard=self._dashboard,
            advantage_slot=lambda: self._objective.advantages,
            summarise=diagnostics.summarise,
        )
        publisher: Publisher | None = None
        try:
            with self._dashboard:
                self._dashboard.phase(f"starting {self._files.url}")
                deadline_s = self._section.deadlines.startup_s
                key = "rlax.deadlines.startup_s"
                thread.run(controller.start(), deadline_s, "starting the controller", key)
                self._dashboard.workers = controller.fleet.workers
                publisher = controller.make_publisher()
                stopped = self._train(thread, controller, publisher, trainer)
                publisher.wait()
                # No deadline of its own: each of its groups has one.
                thread.run(controller.unless_failed(controller.end_periodic(stopped=stopped)))
                # A run with nothing left to train may still be waiting for its first worker.
                thread.run(controller.unless_failed(controller.begun()))
                # Only now is it true, and it stays so if the evaluation is interrupted.
                deadline_s = self._section.deadlines.weights_s
                what, key = "writing the last records", "rlax.deadlines.weights_s"
                thread.run(controller.unless_failed(controller.finish()), deadline_s, what, key)
                self._write_summary(controller, None)
                if not stopped:
                    evaluation = controller.evaluate("after", controller.latest_version)
                    after = thread.run(controller.unless_failed(evaluation))
                    self._write_summary(controller, after)
            self._report(controller, stopped)
        except Exception as error:
            if hasattr(controller, "flow"):
                thread.run_last(controller.run_failed(error))
            raise
        finally:
            self._closing = True
            try:
                # It changes nothing about what the run has done, and so not how it ends.
                if not thread.run_last(controller.close(), controller.close_s):
                    self._dashboard.message("some parts have not ended: logs/trainer.log says more")
                if publisher is not None:
                    publisher.close()
            finally:
                thread.close()
        return INTERRUPTED if stopped else 0

    def _train(
        self, thread: LoopThread, controller: Controller, publisher: Publisher, trainer: Trainer
    ) -> bool:
        """Returns whether training was stopped before its end."""

        def step_finished(done: FinishedStep) -> None:
            controller.step_finished(done, publisher.last_s)

        port = Link(
            loop=thread.loop,
            section=self._section,
            canary_tokens=canary_tokens(
                controller.source.prompts("train"), self._section.rollouts.max_prompt_tokens
            ),
            begun=lambda: controller.unless_failed(controller.begun()),
            next_groups=controller.next_groups,
            publisher=publisher,
            build_batch=self._build_batch,
            started=controller.weights_exist,
            finished=step_finished,
            snapshot=controller.snapshot,
            progress=self._dashboard.progress,
            pace=controller.pace,
        )
        self._port = port
        try:
            trainer.run(port)
        finally:
            self._port = None
        return port.stop_requested

    @contextmanager
    def signals(self) -> Iterator[None]:
        """First signal while a step is trained: stop after it, with a checkpoint. Else: stop now.

        Once the run is being closed, which has a deadline, a signal changes nothing: it would
        leave processes behind.
        """

        def stop(number: int, frame: object) -> None:
            if self._closing:
                return
            port = self._port
            if port is None or not port.training or port.stop_requested:
                raise KeyboardInterrupt
            port.request_stop()
            self._dashboard.message("stopping after this step, with a checkpoint (again: at once)")

        previous = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _write_summary(self, controller: Controller, after: Evaluated | None) -> None:
        document = summary(
            controller,
            after,
            began_s=self._began_s,
            config_hash=self._digest,
            last_step=self._last_step,
        )
        self._files.put_json("summary.json", document)
        reached(FaultPoint.SUMMARY_WRITTEN)

    def _report(self, controller: Controller, stopped: bool) -> None:
        argv, out = self._context.maxtext_argv, self._console
        if stopped:
            step = controller.run_state.next_step - 1
            out.print(f"interrupted after step {step}")
            out.print(f"continue with:  {train_command(argv)}")
        else:
            updates = self._section.objective.updates_per_step
            print_results(out, self._files, argv, self._last_step, updates)
