"""``rlax train``: one run from start to end, on two threads.

The main thread belongs to the trainer: it alone launches JAX work and takes signals. The controller
lives on an event loop on a second thread. They meet in ``ControllerPort``.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

from rich.console import Console

from rlax_plugin.base.concurrency.collection import old_objects_kept
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import ConfigError, RlaxError, TrainingError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.liveness.activity import ends_at
from rlax_plugin.base.text.command_lines import train_command
from rlax_plugin.base.text.secrets import hidden
from rlax_plugin.base.text.terminal import console, quiet
from rlax_plugin.base.types import HostPlace
from rlax_plugin.build import registry_for
from rlax_plugin.config.identity import config_hash
from rlax_plugin.config.loading import repeated_keys, resolve
from rlax_plugin.data.curation.stages import check_stages
from rlax_plugin.data.prompts.of_run import RunPrompts
from rlax_plugin.data.prompts.record import record_prompts
from rlax_plugin.ports.training import Trainer
from rlax_plugin.reward.functions.copies import keep_functions, read_functions
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.controller.controller import Controller, RunSetup
from rlax_plugin.run.controller.observers import Observers, chosen_observers
from rlax_plugin.run.controller.status import StatusCollector
from rlax_plugin.run.controller.trainer_port import ControllerPort
from rlax_plugin.run.display.dashboard import Dashboard
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.start import descent
from rlax_plugin.run.start.assembly import Assembled, assemble
from rlax_plugin.run.start.function_data import check_data
from rlax_plugin.run.start.leading import check_hosts, led, wait_for_hosts
from rlax_plugin.run.start.lease import Lease, held
from rlax_plugin.run.start.observed import ObservedRun
from rlax_plugin.run.start.preflight import check_start
from rlax_plugin.run.start.results import print_results, summary, too_few_steps
from rlax_plugin.run.start.run_directory import (
    WITHOUT_STATE,
    check_same_run,
    exposures,
    finished,
    make_directories,
    run_directory,
    state_directory,
)
from rlax_plugin.run.start.running import Running
from rlax_plugin.run.start.schedules import schedules_of
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.run.state.journal import FORMAT, check_format
from rlax_plugin.run.state.logged_samples import LoggedSamples, read_logged

INTERRUPTED = 130


def train(
    config_path: str,
    overrides: Sequence[str] = (),
    wanted: str | None = None,
    hosts: HostPlace | None = None,
) -> int:
    """Runs, or continues, the run that the config describes.

    Args:
      hosts: place of this process, host 0, among the hosts of the trainer; None: hosts are not
        spoken of.
      wanted: ``RUN`` or ``RUN@STEP``, another run whose weights it starts from; None: none, or the
        one that was given when it began.

    Returns:
      0 when the run is complete, 130 when it was interrupted and can be continued.

    Raises:
      RlaxError: the error that made it fail; its results so far stay in the run directory.
    """
    began_s = time.perf_counter()
    config = resolve(config_path, overrides)
    sys.argv[1:] = map(hidden, sys.argv[1:])  # which W&B records
    registry = registry_for(config.section)
    directory, argv = run_directory(config.maxtext), (config_path, *overrides)
    if hosts is not None:
        argv = (*argv, "--hosts", str(hosts.count))
    files = RunFiles(directory)
    state_dir = state_directory(config.section, files)
    config, functions = read_functions(config, files, state_dir)
    section, maxtext = config.section, config.maxtext
    _, warnings = check_start(config, registry, remote=True)
    digest = config_hash(config.content)
    check_format(files)
    check_same_run(files, digest, config.content, argv)
    origin = descent.decide(files, wanted, registry, section, maxtext)
    updates = section.objective.updates_per_step
    last_step = int(maxtext["steps"]) // updates
    document = finished(files, last_step, section.evaluation.problems > 0)
    make_directories(files, state_dir, section, maxtext)
    out = console(sys.stdout)
    if fewer := too_few_steps(files, last_step, updates):
        out.print(fewer)
    if document is not None:
        out.print(f"the run is complete: {document['steps']} steps")
        print_results(out, files, argv, document["steps"], updates)
        return 0
    with (
        held(files, state_dir, out.print) as lease,
        quiet(state_dir / "logs" / "trainer.log") as out,
    ):
        written = {
            "format": FORMAT,
            "config": config_path,
            "overrides": list(map(hidden, overrides)),
            "config_hash": digest,
        }
        if hosts is not None:
            written["hosts"] = hosts.count
        try:
            descent.record(files, origin)
            config = keep_functions(config, functions, files, state_dir)
            files.put_json("config.json", written)
            files.put(CONFIG, config.to_yaml(), private=True)  # with secrets: rlax eval needs them
        except RlaxError as error:
            base = maxtext["base_output_directory"]
            raise ConfigError("base_output_directory", base, str(error)) from error
        for key, text in (*repeated_keys(overrides), *warnings):
            out.print(f"warning: {key} {text}")
        reached(FaultPoint.CONFIG_WRITTEN)
        dashboard = Dashboard(out, last_step)
        builder = Builder.of(
            config, state_dir, run_url=files.url, progress=dashboard.reading, hosts=hosts
        )
        setup = RunSetup(
            builder=builder,
            files=files,
            argv=argv,
            config_hash=digest,
            origin=origin,
            last_step=last_step,
            dashboard=dashboard,
            schedules=schedules_of(builder.registry, section),
        )

        def removed() -> None:
            with suppress(RlaxError):  # the run directory is gone as well, which ends the run
                lease.check()
                dashboard.message(
                    f"warning: the state directory {state_dir} was removed while the run trains: "
                    f"{WITHOUT_STATE}"
                )

        observed = ObservedRun(state_dir, dashboard.waiting, removed)
        run = _Run(setup, out, began_s, observed, lease)
        with run.signals, observed:
            lease.on_lost = run.interrupt
            try:
                return run.execute()
            except KeyboardInterrupt:
                lease.check_known()
                out.print("interrupted")
                out.print(f"continue with:  {train_command(argv)}")
                return INTERRUPTED


class _Run:
    """One process's part of a run: the parts that it has started, and their end."""

    def __init__(
        self, setup: RunSetup, console: Console, began_s: float, observed: ObservedRun, lease: Lease
    ):
        self._setup, self._console, self._began_s = setup, console, began_s
        self._observed, self._lease = observed, lease
        self._dashboard, self._section = setup.dashboard, setup.section
        config = setup.builder.context.config
        self._maxtext = {} if config is None else config.maxtext
        self._port: ControllerPort | None = None  # while the trainer runs
        self.signals = Signals(self._stop)

    def execute(self) -> int:
        # What it rejects, it rejects before a worker is started.
        setup, builder = self._setup, self._setup.builder
        trainer = builder.trainer()
        check_hosts(builder.context.hosts, trainer, self._section)
        if setup.origin is not None:
            replaced = descent.start(trainer, self._section.trainer.name, setup.origin)
            instead = f", in place of {replaced}" if replaced else ""
            self._console.print(f"the first weights are those of {setup.origin}{instead}")
        chosen = chosen_observers(builder)
        with Running(self.signals, self._dashboard.message, "logs/trainer.log") as running:
            self._observed.watch_loop(running.thread.loop)
            observers = Observers(builder.registry.manager, chosen, running.supervision)
            try:
                with self._dashboard:
                    for line in exposures(setup.files, builder.context.run_dir, self._section):
                        self._dashboard.message(f"warning: {line}")
                    prompts, logged = self._read_prompts()
                    deadline_s = self._section.deadlines.startup_s
                    ends = ends_at("rlax.deadlines.startup_s", deadline_s)
                    self._dashboard.waiting.begin("starting the controller", ends=ends)
                    work = assemble(
                        setup, trainer, observers, running, prompts, self._observed, logged
                    )
                    run = running.bring_up(work, "starting the controller", deadline_s)
                    running.last.callback(run.publisher.close)
                    stopped = self._train(running, run, trainer)
                self._report(run.controller, stopped)
            except Exception as error:
                running.thread.run_last(observers.run_failed(error))
                raise
        return INTERRUPTED if stopped else 0

    def _read_prompts(self) -> tuple[RunPrompts, LoggedSamples | None]:
        """Reads prompts and logged samples on this thread, as it may take minutes.

        A resume must find the same.
        """
        builder = self._setup.builder
        part, note = builder.part, self._dashboard.message
        prompts_s = self._section.deadlines.prompts_s
        ends = ends_at("rlax.deadlines.prompts_s", prompts_s, " without another row")
        self._dashboard.waiting.begin("reading the prompts", ends=ends)
        trains = not self._section.trains_on_log
        prompts, logged = RunPrompts.read(self._section, part, trains=trains, note=note), None
        check_stages(self._section.curation.stages, prompts.train)
        check_data(self._section, builder.context.functions, prompts)
        if not trains:
            ends = ends_at("rlax.deadlines.prompts_s", prompts_s)
            self._dashboard.waiting.begin("reading the logged samples", ends=ends)
            slots = builder.registry.slots(builder.context)
            logged = read_logged(self._section, prompts.source, slots, self._maxtext)
            note(logged.note)
            prompts = dataclasses.replace(prompts, train=logged.prompts)
        record_prompts(self._setup.files, self._section, prompts)
        return prompts, logged

    def _train(self, running: Running, run: Assembled, trainer: Trainer) -> bool:
        """Trains and evaluates; returns True if training was stopped before its end."""
        thread, controller, publisher = running.thread, run.controller, run.publisher
        self._dashboard.workers = controller.fleet.workers
        self._dashboard.waiting.beside = controller.generation.starting
        self._dashboard.waiting.begin(f"starting trainer {self._section.trainer.name}")
        port = self._port = ControllerPort(
            controller, thread.loop, publisher, run.leader, run.devices
        )
        last_step, every = self._setup.last_step, self._section.evaluation.every
        publisher.will_write(last_step)
        if every:  # the worker that stays at such a version reads its files
            publisher.will_write(*range(every, last_step, every))
        collector = StatusCollector(controller, self._setup.last_step)
        self._observed.controller_runs(collector, thread.loop, port.activity, publisher)
        running.last.callback(self._observed.controller_ended)
        on_stop = partial(self._stopped_by_host, running.supervision)
        rpc_s = self._section.deadlines.rpc_s
        with ExitStack() as orders:
            orders.enter_context(led(run.leader, trainer, on_stop, thread, rpc_s))
            try:
                if run.leader is not None:
                    startup_s = self._section.deadlines.startup_s
                    ends = ends_at("rlax.deadlines.startup_s", startup_s)
                    self._dashboard.waiting.begin("waiting for the other hosts", ends=ends)
                    wait_for_hosts(run.leader, thread, startup_s)
                with old_objects_kept():
                    trainer.run(port)
            except KeyboardInterrupt:
                self._lease.check_known()
                running.supervision.check()  # another host's failure interrupts a start
                raise
            except SystemExit as end:  # would end the command with a plug-in's code, such as 0
                caller = "the trainer, or a signal or library that it called,"
                raise TrainingError(f"{caller} ended with sys.exit({end.code!r})") from end
            finally:
                self._port = None
                port.activity.ends()
                if run.devices is not None:
                    run.devices.rest()
            publisher.wait()
            if run.devices is None or port.stopping:
                orders.close()  # else the other hosts generate for the evaluation, too
            publisher.forget()
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

    def _stop(self) -> bool:
        """Handles a signal; returns True if a stop with a checkpoint follows the current step.

        Only the first signal during a step does this; any other interrupts at once.
        """
        port = self._port
        if port is None or not port.training or port.stopping or self._lease.lost:
            return False
        port.request_stop()
        self._dashboard.message("stopping after this step, with a checkpoint (again: at once)")
        return True

    def interrupt(self) -> None:
        """Interrupts the main thread as Ctrl-C does; any thread may call."""
        os.kill(os.getpid(), signal.SIGINT)

    def _stopped_by_host(self, supervision: Supervision, host: int, failure: str) -> None:
        """Handles another host's request to stop; called on the event loop."""
        if failure:
            supervision.fail(TrainingError(f"host {host} has failed: {failure}"))
            if self._port is not None and not self._port.training:
                self.interrupt()  # nothing else ends the wait for that host
        elif (self._port is None or not self._port.stopping) and not self._stop():
            self.interrupt()  # as if it had arrived here

    def _write_summary(self, controller: Controller, after: Evaluated | None) -> None:
        document = summary(
            controller,
            after,
            began_s=self._began_s,
            config_hash=self._setup.config_hash,
            maxtext=self._maxtext,
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
            updates, last = self._section.objective.updates_per_step, self._setup.last_step
            steps = max(last, controller.run_state.next_step - 1)
            print_results(out, self._setup.files, argv, steps, updates)
