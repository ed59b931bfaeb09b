"""The policy that a command measures: its weights, and workers that generate with them.

If the trainer has to read weights, it does so on the main thread. Everything else runs on an event
loop on a second thread, as in ``rlax train``.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlax_plugin.build import Registry, registry_for
from rlax_plugin.commands.evaluate.checkpoint import (
    CheckpointPort,
    checkpoint_reader,
    first_weights_reader,
)
from rlax_plugin.commands.evaluate.session import Session, open_session
from rlax_plugin.commands.target import Target, checkpoint_name, find_version
from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig, of_yaml, resolve
from rlax_plugin.errors import ConfigError, PluginError, RlaxError
from rlax_plugin.ports.protocols import BuildContext, WeightStore
from rlax_plugin.ports.training import TrainerPort
from rlax_plugin.prompts.of_run import Part, RunPrompts
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.start.closing import Closing
from rlax_plugin.text.terminal import counting, quiet
from rlax_plugin.weights.publisher import Publisher
from rlax_plugin.weights.verification import canary_tokens

log = logging.getLogger("rlax.evaluate")

# A run that is going on has its own.
_OWN_PORTS = ("rlax.network.port=0", "rlax.network.prometheus_port=null")
_FIRST = "first"  # the run of which only the first weights are made


class Signals:
    """Signal handling: SIGTERM ends a command as Ctrl-C does; neither interrupts cleaning up."""

    closing = False

    def stop(self, number: int, frame: object) -> None:
        if not self.closing:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Signals]:
    """Handles both signals as ``Signals`` describes."""
    signals = Signals()
    previous = {n: signal.signal(n, signals.stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def working_directory(command: str) -> Iterator[tuple[Path, Console, Signals]]:
    """Makes a temporary directory for a command, with a log file of all that libraries print.

    It is kept if the command fails, and the message names the logs.

    Yields:
      The directory, a console on the real standard output, and the signals.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"rlax-{command}-"))
    (directory / "logs").mkdir()
    try:
        with quiet(directory / "logs" / f"{command}.log") as console, interruptible() as signals:
            yield directory, console, signals
    except (ConfigError, PluginError):
        shutil.rmtree(directory)
        raise
    except RlaxError as error:
        raise RlaxError(f"{error} (logs: {directory / 'logs'})") from error
    except BaseException:
        shutil.rmtree(directory)
        raise
    shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a policy: a run or a config.

    Attributes:
      config: config with which samples are generated.
      training: the section that the run trains with; without a run, that of ``config``.
      target: weights of a run; None: the weights that training with the config would start from.
    """

    config: ResolvedConfig
    training: RlaxSection
    target: Target | None = None

    @classmethod
    def of_run(cls, target: Target, overrides: Sequence[str]) -> Origin:
        """Returns a run's policy, with ``key=value`` arguments on top of the run's config."""
        text, source = target.run.get(CONFIG), target.run.location(CONFIG)
        config = of_yaml(text, source, (*_OWN_PORTS, *overrides))
        return cls(config, of_yaml(text, source).section, target)

    @classmethod
    def of_config(cls, path: str, overrides: Sequence[str]) -> Origin:
        """Returns the policy that training would start from."""
        config = resolve(path, (*_OWN_PORTS, *overrides))
        return cls(config, config.section)

    @property
    def name(self) -> str:
        """The run's directory, or the config."""
        return self.target.run.url if self.target is not None else self.config.source


class Policy:
    """A policy: finds its weights, and starts workers that generate with them.

    Args:
      directory: temporary directory of the command.
      note: shows a failure of rewards in one line; the command continues.

    Attributes:
      section: the section of the config.
      what: a description of the weights that are measured; complete once it runs.
    """

    def __init__(self, origin: Origin, directory: Path, note: Callable[[str], None]):
        self._origin, self._directory, self._note = origin, directory, note
        self.section: RlaxSection = origin.config.section
        self.what = origin.name
        self._registry: Registry = registry_for(self.section)
        self._registry.validate(self.section)
        config, target = origin.config, origin.target
        self._base, run_url = str(directory), "" if target is None else target.run.url
        if target is None:
            # What training would make before its first step, such as a warm start, is made here.
            where = {"base_output_directory": self._base, "run_name": _FIRST}
            config, run_url = config.with_content(where), f"{self._base}/{_FIRST}"
        self._context = BuildContext(
            run_dir=directory,
            seed=self.section.seed,
            section=self.section,
            config=config,
            run_url=run_url,
        )
        store = self.section.weights.store
        self._store: WeightStore = self._registry.part(
            "weight_store", store, "rlax.weights.store", self._context
        )
        self._supervision, self._closing = Supervision(), Closing(log.warning)

    @contextmanager
    def served(
        self,
        console: Console,
        signals: Signals,
        read: Callable[[RlaxSection, Part], RunPrompts],
    ) -> Iterator[tuple[LoopThread, Session]]:
        """Starts everything from the reward processes to the workers, and stops it at the end.

        Args:
          read: reads the prompts that are needed.

        Yields:
          The thread of the event loop, and the session on it.

        Raises:
          RlaxError: the weights cannot be found or read, or a process did not start.
        """
        thread = LoopThread()
        try:
            yield thread, self._session(thread, console, read)
        finally:
            signals.closing = True
            try:
                thread.run_last(self._close(), self._closing.deadline_s)
            finally:
                thread.close()

    def _session(
        self,
        thread: LoopThread,
        console: Console,
        read: Callable[[RlaxSection, Part], RunPrompts],
    ) -> Session:
        target, rpc_s = self._origin.target, self.section.deadlines.rpc_s
        if target is None or target.is_checkpoint:
            publish = self._first_weights() if target is None else self._checkpoint(target)
            session = self._open(thread, self._prompts(console, read))
            self._read(thread, session, publish)
            return session
        version, alive = thread.run(
            find_version(target, self._origin.training, self._closing),
            3 * rpc_s,
            "finding the weight version",
            "rlax.deadlines.rpc_s",
        )
        going_on = ", which is still training" if alive else ""
        self.what = f"version {version.version} of {target.run.url}{going_on}"
        session = self._open(thread, self._prompts(console, read))
        what, key = "serving the version", "rlax.deadlines.rpc_s"
        thread.run(session.publish(version), rpc_s, what, key)
        return session

    async def _close(self) -> None:
        await self._supervision.close()
        await self._closing.aclose()

    def _prompts(
        self, console: Console, read: Callable[[RlaxSection, Part], RunPrompts]
    ) -> RunPrompts:
        with counting(console) as progress:
            context = replace(self._context, progress=progress)

            def part(kind: str, choice: Choice, key: str) -> Any:
                return self._registry.part(kind, choice, key, context)

            return read(self.section, part)

    def _open(self, thread: LoopThread, prompts: RunPrompts) -> Session:
        opening = open_session(
            self._context,
            self._registry,
            prompts,
            store=self._store,
            note=self._note,
            supervision=self._supervision,
            closing=self._closing,
        )
        deadline_s, key = self.section.deadlines.startup_s, "rlax.deadlines.startup_s"
        return thread.run(opening, deadline_s, "starting the evaluation", key)

    def _trainer(self) -> Any:
        return self._registry.part("trainer", self.section.trainer, "rlax.trainer", self._context)

    def _checkpoint(self, target: Target) -> Callable[[TrainerPort], None]:
        reader = checkpoint_reader(self._trainer(), self.section.trainer.name)
        known = reader.checkpoints()
        name = checkpoint_name(target, known)
        step = next(step for step, its in known.items() if its == name)
        self.what = f"the checkpoint of step {step} of {target.run.url}"
        return lambda port: reader.publish_checkpoint(port, name)

    def _first_weights(self) -> Callable[[TrainerPort], None]:
        reader = first_weights_reader(self._trainer(), self.section.trainer.name)
        self.what = f"what training with {self._origin.name} starts from"
        return reader.publish_first

    def _read(
        self, thread: LoopThread, session: Session, publish: Callable[[TrainerPort], None]
    ) -> None:
        """Lets the trainer publish weights as a version that this session serves."""
        # Where the workers can reach it: they may be on other machines.
        target, config = self._origin.target, self._origin.config
        run = RunFiles(config.maxtext.get("base_output_directory") or self._base)
        own = self._directory.name
        if target is not None:
            run, own = target.run, f"evaluation/{own}"
        here = str(self._directory) if run.is_local else run.location(own)
        publisher = Publisher(
            loop=thread.loop,
            store=self._store,
            directory=f"{here}/weights",
            announcer=session,
            failures=self._supervision,
            deadline_s=self.section.deadlines.weights_s,
            pace=session.pace,
        )
        source = session.source
        tokens = canary_tokens(source.prompts("train"), self.section.rollouts.max_prompt_tokens)
        try:
            publish(CheckpointPort(publisher, tokens))
            publisher.wait()
        finally:
            publisher.close()
            if not run.is_local:
                self._closing.callback(run.delete, own)
