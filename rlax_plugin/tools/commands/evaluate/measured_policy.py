"""The policy that a command measures: its weights, and workers that generate with them.

If the trainer has to read weights, it does so on the main thread. Everything else runs on an event
loop on a second thread, as in ``rlax train``.
"""

from __future__ import annotations

import functools
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.errors import ConfigError, PluginError, RlaxError, TrainingError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.liveness.activity import ends_at
from rlax_plugin.base.text.terminal import quiet
from rlax_plugin.base.types import SAFETENSORS
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import ResolvedConfig, of_yaml, resolve
from rlax_plugin.data.prompts.of_run import Part, RunPrompts
from rlax_plugin.ports.training import Conversion, Decision, NewWeights, Trainer, TrainerPort
from rlax_plugin.reward.functions.copies import kept_functions
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.display.waiting import Waiting, WaitingDisplay
from rlax_plugin.run.start.conversions import cannot_convert, converts_for
from rlax_plugin.run.start.function_data import check_data
from rlax_plugin.run.start.running import Running
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.tools.commands.evaluate.session import Session, open_session
from rlax_plugin.tools.commands.target import checkpoint_name, find_version
from rlax_plugin.weights.named import Target
from rlax_plugin.weights.publisher import Publisher, by_one_host
from rlax_plugin.weights.verification import canary_tokens

log = logging.getLogger("rlax.evaluate")

# A run that is going on has its own.
_OWN_PORTS = ("rlax.network.port=0", "rlax.network.prometheus_port=null")
_FIRST = "first"  # the run of which only the first weights are made


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
        with quiet(directory / "logs" / f"{command}.log") as console, Signals() as signals:
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


class CheckpointPort(TrainerPort):
    """A trainer port that only publishes weights, without training.

    Args:
      waiting: shows what the trainer does.
    """

    def __init__(self, publisher: Publisher, canary_tokens: np.ndarray, waiting: Waiting):
        self._waiting, self._phase = waiting, ""
        self._publisher, self._canary_tokens = publisher, canary_tokens

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        raise TrainingError("a trainer whose weights are only read cannot train")

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._canary_tokens

    def take(self, weights: NewWeights) -> None:
        self._publisher.publish(weights)

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._waiting.begin(phase, ends=f"it ends after at most {of} steps")
        self._waiting.progress(f"step {done} of at most {of} {note}".rstrip())

    def waits(self, what: str, typical_s: float = 0.0) -> None:
        self._waiting.begin(what, typical_s=typical_s)

    def decide(self, step: int) -> Decision:
        return Decision(save=False, stop=True)


ReadPrompts = Callable[[RlaxSection, Part], RunPrompts]


class Policy:
    """A policy: finds its weights, and starts workers that generate with them.

    Args:
      directory: temporary directory of the command.
      note: shows a failure of rewards in one line; the command continues.
      read: reads the prompts that are needed.

    Attributes:
      section: the section of the config.
      what: a description of the weights that are measured; complete once it runs.
    """

    def __init__(
        self, origin: Origin, directory: Path, note: Callable[[str], None], read: ReadPrompts
    ):
        self._origin, self._directory = origin, directory
        self._note, self._read_prompts = note, read
        self.section: RlaxSection = origin.config.section
        self.what = origin.name
        config, target = origin.config, origin.target
        if target is not None:
            config = kept_functions(config, target.run, directory)
        self._base, run_url = str(directory), "" if target is None else target.run.url
        if target is None:
            # What training would make before its first step, such as a warm start, is made here.
            where = {"base_output_directory": self._base, "run_name": _FIRST}
            config, run_url = config.with_content(where), f"{self._base}/{_FIRST}"
        self._builder = Builder.of(config, directory, run_url=run_url)
        self._builder.registry.validate(self.section)
        self._builder.check_functions()
        self._store = self._builder.weight_store()

    @contextmanager
    def served(
        self, console: Console, signals: Signals, *, show: bool = True
    ) -> Iterator[tuple[LoopThread, Session, Waiting]]:
        """Starts everything from the reward processes to the workers, and stops it at the end.

        Args:
          show: True if the console shows what is being waited for.

        Yields:
          The thread of the event loop, the session on it, and the display.

        Raises:
          RlaxError: the weights cannot be found or read, or a process did not start.
        """
        with (
            Running(signals, log.warning, "this log") as running,
            WaitingDisplay(console, show=show) as waiting,
            ExitStack() as stack,
        ):
            session = self._session(running, waiting, stack)
            yield running.thread, session, waiting

    def _session(self, running: Running, waiting: Waiting, stack: ExitStack) -> Session:
        target, rpc_s = self._origin.target, self.section.deadlines.rpc_s
        if target is None or target.is_checkpoint:
            publish = self._first_weights() if target is None else self._checkpoint(target)
            session = self._open(running, self._prompts(waiting), waiting)
            publisher = self._publisher(running, session, stack)
            self._read(publisher, session, publish, waiting)
            return session
        version, alive = running.thread.run(
            find_version(target, self._origin.training, running.closing.part()),
            3 * rpc_s,
            "finding the weight version",
            "rlax.deadlines.rpc_s",
        )
        going_on = ", which is still training" if alive else ""
        self.what = f"version {version.version} of {target.run.url}{going_on}"
        session = self._open(running, self._prompts(waiting), waiting)
        what, key = "serving the version", "rlax.deadlines.rpc_s"
        running.thread.run(session.publish(version), rpc_s, what, key)
        self._publisher(running, session, stack).adopt(version)
        session.trainer_ended()
        return session

    def _prompts(self, waiting: Waiting) -> RunPrompts:
        def progress(what: str, rows: int) -> None:
            waiting.progress(f"{what}, {rows:,} rows")

        prompts_s = self.section.deadlines.prompts_s
        ends = ends_at("rlax.deadlines.prompts_s", prompts_s, " without another row")
        waiting.begin("reading the prompts", ends=ends)
        context = replace(self._builder.context, progress=progress)
        prompts = self._read_prompts(self.section, replace(self._builder, context=context).part)
        check_data(self.section, context.functions, prompts)
        return prompts

    def _open(self, running: Running, prompts: RunPrompts, waiting: Waiting) -> Session:
        opening = open_session(
            self._builder, prompts, store=self._store, note=self._note, running=running
        )
        deadline_s = self.section.deadlines.startup_s
        ends = ends_at("rlax.deadlines.startup_s", deadline_s)
        waiting.begin("starting the reward processes and the workers", ends=ends)
        session = running.bring_up(opening, "starting the evaluation", deadline_s)
        waiting.beside = session.generation.starting
        return session

    @functools.cached_property
    def _reader(self) -> Trainer:
        return self._builder.trainer()

    def _conversion(self) -> Conversion:
        if not self._reader.converts_versions:
            reason = "does not declare converts_versions"
            raise ConfigError("rlax.trainer.name", self.section.trainer.name, reason)
        return self._reader.converter()

    def _checkpoint(self, target: Target) -> Callable[[TrainerPort], None]:
        reader = self._reader
        if not reader.keeps_checkpoints:
            reason = "does not declare keeps_checkpoints: give --version"
            raise ConfigError("rlax.trainer.name", self.section.trainer.name, reason)
        known = reader.checkpoints()
        name = checkpoint_name(target, known)
        step = next(step for step, its in known.items() if its == name)
        self.what = f"the checkpoint of step {step} of {target.run.url}"
        return lambda port: reader.publish_checkpoint(port, name)

    def _first_weights(self) -> Callable[[TrainerPort], None]:
        reader = self._reader
        if not reader.keeps_checkpoints:
            reason = (
                "does not declare keeps_checkpoints, so it cannot give the weights that a config "
                "starts from: train one step, and give the run"
            )
            raise ConfigError("rlax.trainer.name", self.section.trainer.name, reason)
        self.what = f"what training with {self._origin.name} starts from"
        return reader.publish_first

    def _publisher(self, running: Running, session: Session, stack: ExitStack) -> Publisher:
        """Returns a publisher of versions that a session serves, which ``stack`` closes."""
        # Where the workers can reach it: they may be on other machines.
        target, config = self._origin.target, self._origin.config
        run = RunFiles(config.maxtext.get("base_output_directory") or self._base)
        own = self._directory.name
        if target is not None:
            run, own = target.run, f"evaluation/{own}"
        here = str(self._directory) if run.is_local else run.location(own)
        directory = f"{here}/weights"
        publisher = Publisher(
            loop=running.thread.loop,
            write=by_one_host(self._store),
            directory=directory,
            announcer=session,
            failures=running.supervision,
            deadline_s=self.section.deadlines.weights_s,
            pace=session.generation.pace,
        )
        stack.callback(publisher.close)
        if not run.is_local:
            running.closing.part().callback(run.delete, own)
        fleet, convert = session.generation.fleet, self._conversion
        key = "base_output_directory" if target is None else "the run"
        if reason := cannot_convert(directory, key):
            running.thread.loop.call_soon_threadsafe(fleet.unmakes, SAFETENSORS, reason)
        converts_for(fleet, convert, self._store, publisher)
        return publisher

    def _read(
        self,
        publisher: Publisher,
        session: Session,
        publish: Callable[[TrainerPort], None],
        waiting: Waiting,
    ) -> None:
        """Lets the trainer publish weights as a version that this session serves."""
        source = session.generation.source
        tokens = canary_tokens(source.prompts("train"), self.section.rollouts.max_prompt_tokens)
        try:
            publish(CheckpointPort(publisher, tokens, waiting))
            publisher.wait()
        finally:
            publisher.forget()
            session.trainer_ended()
