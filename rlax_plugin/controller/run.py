"""``rlax train``: one run from start to end, on two threads.

The main thread belongs to the trainer: it alone launches JAX work and takes signals. The controller
lives on an event loop on a second thread. ``ControllerPort`` is where they meet.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from rlax_plugin.build import registry_for
from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import Choice
from rlax_plugin.config.identity import config_hash
from rlax_plugin.config.loading import resolve
from rlax_plugin.controller import descent
from rlax_plugin.controller.assembly import Assembled, assemble
from rlax_plugin.controller.closing import Closing
from rlax_plugin.controller.controller import Controller, RunSetup
from rlax_plugin.controller.observers import Observers, chosen_observers
from rlax_plugin.controller.preflight import check_start
from rlax_plugin.controller.prompt_record import record_prompts
from rlax_plugin.controller.results import print_results
from rlax_plugin.controller.run_directory import (
    check_same_run,
    finished,
    locked,
    make_directories,
    run_directory,
    state_directory,
)
from rlax_plugin.controller.stages import check_stages
from rlax_plugin.controller.summary import summary
from rlax_plugin.controller.trainer_port import ControllerPort
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.evaluation.problems import RunPrompts
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.metrics.dashboard import Dashboard
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Trainer
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.records.journal import check_format
from rlax_plugin.text.command_lines import train_command
from rlax_plugin.text.terminal import console, quiet

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
    config = resolve(config_path, overrides)
    section, maxtext = config.section, config.maxtext
    registry = registry_for(section)
    directory, argv = run_directory(maxtext), (config_path, *overrides)
    check_start(config, registry, remote=True)
    files = RunFiles(directory)
    state_dir = state_directory(section, files)
    digest = config_hash(config.content)
    check_format(files)
    check_same_run(files, digest, config.content, argv)
    origin = descent.decide(files, wanted, registry, section, maxtext)
    updates = section.objective.updates_per_step
    last_step = int(maxtext["steps"]) // updates
    document = finished(files, last_step, section.evaluation.problems > 0)
    make_directories(files, state_dir, section, maxtext)
    if document is not None:
        out = console(sys.stdout)
        out.print(f"the run is complete: {document['steps']} steps")
        print_results(out, files, argv, document["steps"], updates)
        return 0
    with locked(state_dir), quiet(state_dir / "logs" / "trainer.log") as out:
        written = {"config": config_path, "overrides": list(overrides), "config_hash": digest}
        try:
            descent.record(files, origin)
            files.put_json("config.json", written)
            files.put(CONFIG, config.to_yaml())
        except RlaxError as error:
            base = maxtext["base_output_directory"]
            raise ConfigError("base_output_directory", base, str(error)) from error
        reached(FaultPoint.CONFIG_WRITTEN)
        dashboard = Dashboard(out, last_step)
        context = BuildContext(
            run_dir=state_dir,
            seed=section.seed,
            section=section,
            config=config,
            run_url=files.url,
            progress=dashboard.reading,
        )
        setup = RunSetup(
            context=context,
            files=files,
            registry=registry,
            argv=argv,
            config_hash=digest,
            origin=origin,
            last_step=last_step,
            dashboard=dashboard,
        )
        run = _Run(setup, out, began_s)
        with run.signals():
            try:
                return run.execute()
            except KeyboardInterrupt:
                out.print("interrupted")
                out.print(f"continue with:  {train_command(argv)}")
                return INTERRUPTED


class _Run:
    """One process's part of a run: what it has started, and how it ends."""

    def __init__(self, setup: RunSetup, console: Console, began_s: float):
        self._setup, self._console, self._began_s = setup, console, began_s
        self._dashboard, self._section = setup.dashboard, setup.section
        self._supervision = Supervision()
        self._closing = Closing(self._dashboard.message)
        self._port: ControllerPort | None = None  # while the trainer runs
        self._ends = False

    def execute(self) -> int:
        # What it rejects, it rejects before a worker is started.
        trainer: Trainer = self._setup.registry.part(
            "trainer", self._section.trainer, "rlax.trainer", self._setup.context
        )
        if (origin := self._setup.origin) is not None:
            replaced = descent.start(trainer, self._section.trainer.name, origin)
            instead = f", in place of {replaced}" if replaced else ""
            self._console.print(f"the first weights are those of {origin}{instead}")
        chosen = chosen_observers(self._setup.registry, self._setup.context)
        observers = Observers(self._setup.registry.manager, chosen, self._supervision)
        thread = LoopThread()
        run: Assembled | None = None
        try:
            with self._dashboard:
                self._dashboard.phase(f"starting {self._setup.files.url}")
                prompts = self._read_prompts()
                deadline_s = self._section.deadlines.startup_s
                key = "rlax.deadlines.startup_s"
                work = assemble(
                    self._setup, trainer, observers, self._supervision, self._closing, prompts
                )
                run = thread.run(work, deadline_s, "starting the controller", key)
                stopped = self._train(thread, run, trainer)
            self._report(run.controller, stopped)
        except Exception as error:
            thread.run_last(observers.run_failed(error))
            raise
        finally:
            self._ends = True
            try:
                # It changes nothing about what the run has done, and so not how it ends.
                if not thread.run_last(self._close(), self._closing.deadline_s):
                    self._dashboard.message("some parts have not ended: logs/trainer.log says more")
                if run is not None:
                    run.publisher.close()
            finally:
                thread.close()
        return INTERRUPTED if stopped else 0

    def _read_prompts(self) -> RunPrompts:
        """On this thread, because it may take minutes; those of a resumed run must be the same."""
        setup = self._setup

        def part(kind: str, choice: Choice, key: str) -> Any:
            return setup.registry.part(kind, choice, key, setup.context)

        prompts = RunPrompts.read(self._section, part, note=self._dashboard.message)
        check_stages(self._section.curation.stages, prompts.train)
        record_prompts(setup.files, self._section, prompts)
        return prompts

    async def _close(self) -> None:
        await self._supervision.close()
        await self._closing.aclose()

    def _train(self, thread: LoopThread, run: Assembled, trainer: Trainer) -> bool:
        """Trains and evaluates; returns whether training was stopped before its end."""
        controller, publisher = run.controller, run.publisher
        self._dashboard.workers = controller.fleet.workers
        port = self._port = ControllerPort(controller, thread.loop, publisher)
        try:
            trainer.run(port)
        finally:
            self._port = None
        publisher.wait()
        # No deadline of its own: each group of an evaluation has one.
        thread.run(controller.training_ended(stopped=port.stopping))
        # Only now is it true, and it stays so if the evaluation is interrupted.
        deadline_s = self._section.deadlines.weights_s
        what, key = "writing the last records", "rlax.deadlines.weights_s"
        thread.run(controller.finish(), deadline_s, what, key)
        self._write_summary(controller, None)
        if not port.stopping:
            self._write_summary(controller, thread.run(controller.evaluate_after()))
        return port.stopping

    @contextmanager
    def signals(self) -> Iterator[None]:
        """First signal while a step is trained: stop after it, with a checkpoint. Else: stop now.

        Once the run is being closed, which has a deadline, a signal changes nothing: it would
        leave processes behind.
        """

        def stop(number: int, frame: object) -> None:
            if self._ends:
                return
            port = self._port
            if port is None or not port.training or port.stopping:
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
            config_hash=self._setup.config_hash,
            last_step=self._setup.last_step,
        )
        self._setup.files.put_json("summary.json", document)
        reached(FaultPoint.SUMMARY_WRITTEN)

    def _report(self, controller: Controller, stopped: bool) -> None:
        argv, out = self._setup.argv, self._console
        if stopped:
            step = controller.run_state.next_step - 1
            out.print(f"interrupted after step {step}")
            out.print(f"continue with:  {train_command(argv)}")
        else:
            updates = self._section.objective.updates_per_step
            print_results(out, self._setup.files, argv, self._setup.last_step, updates)
