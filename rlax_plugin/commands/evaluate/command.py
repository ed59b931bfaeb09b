"""``rlax eval``: from a run's directory to a table of measures.

The main thread is the trainer's, if a checkpoint is to be read; all else lives on an event loop on
a second thread, as in ``rlax train``.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rlax_plugin.build import Registry, registry_for
from rlax_plugin.commands.evaluate.checkpoint import CheckpointPort, checkpoint_reader
from rlax_plugin.commands.evaluate.session import Session, open_session
from rlax_plugin.commands.evaluate.show import measures_table
from rlax_plugin.commands.target import Target, checkpoint_name, find_version
from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.config import Choice, Deadlines, RlaxSection
from rlax_plugin.config.identity import decides
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.controller.closing import Closing
from rlax_plugin.errors import ConfigError, PluginError, RlaxError, alternatives
from rlax_plugin.evaluation.problems import ProblemSet, RunPrompts
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.metrics.dashboard import reward_errors
from rlax_plugin.ports.protocols import BuildContext, WeightStore
from rlax_plugin.ports.training import CheckpointReader
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.records.places import check_file_writable
from rlax_plugin.rpc.message_sizes import check_messages
from rlax_plugin.text.terminal import counting, quiet
from rlax_plugin.weights.publisher import Publisher
from rlax_plugin.weights.verification import canary_tokens

log = logging.getLogger("rlax.evaluate")

# A run that is going on has its own.
_OWN_PORTS = ("rlax.network.port=0", "rlax.network.prometheus_port=null")


def evaluate(
    target: Target,
    overrides: Sequence[str] = (),
    *,
    sets: Sequence[str] = (),
    out: str | None = None,
    as_json: bool = False,
) -> None:
    """Measures, prints, and writes ``RUN/evaluation/eval-<version>.json``.

    What was measured with other settings stays: the file is then ``eval-<version>-2.json``.

    Args:
      overrides: ``key=value``, on top of the run's config.
      sets: names of those to be measured; empty: all.
      out: where to write the result instead.
      as_json: prints that instead of a table.

    Raises:
      RlaxError: whatever made it fail; the message says where the logs are, and the result, if it
        could only not be written.
    """
    if out is not None:
        check_file_writable("--out", out, Deadlines().rpc_s)
    directory = Path(tempfile.mkdtemp(prefix="rlax-eval-"))
    (directory / "logs").mkdir()
    try:
        with quiet(directory / "logs" / "eval.log") as console, _interruptible() as signals:
            note = log.warning if as_json else console.print
            job = _Job(target, directory, overrides, sets, note)
            found = job.run(console, signals, show=not as_json)
            document = found.to_json() | {"measured": job.what, "overrides": list(overrides)}
            if as_json:
                console.print(json.dumps(document, indent=2), soft_wrap=True)
            else:
                console.print(measures_table(found, job.what))
                for name in found.failures:
                    console.print(f"{name}: {reward_errors(found, name)}")
            try:
                path = _write(target.run, document, out)
            except RlaxError as error:
                kept = directory / "result.json"
                kept.write_text(json.dumps(document, indent=2) + "\n")
                raise RlaxError(f"{error}; the result is in {kept}") from error
            if not as_json:
                console.print(f"written to {path}")
    except (ConfigError, PluginError):
        shutil.rmtree(directory)
        raise
    except RlaxError as error:
        raise RlaxError(f"{error} (logs: {directory / 'logs'})") from error
    except BaseException:
        shutil.rmtree(directory)
        raise
    shutil.rmtree(directory)


def _name(run: RunFiles, document: Mapping[str, Any]) -> str:
    """Where no other result is lost: the first name that is free, or holds the same settings."""
    first = f"evaluation/eval-{document['version']:08d}"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(
        f"{name}.json"
        for name in names
        if (there := run.get_json(f"{name}.json")) is None
        or _settings(there) == _settings(document)
    )


def _settings(document: Mapping[str, Any]) -> tuple[object, list[str]]:
    """What a result depends on, beside the version."""
    return list(filter(decides, document.get("overrides", []))), list(document["sets"])


def _write(run: RunFiles, document: dict[str, Any], out: str | None) -> str:
    if out is None:
        name = _name(run, document)
        run.put_json(name, document)
        return f"{run.url.rstrip('/')}/{name}"
    files = RunFiles(Path(out).parent) if "://" not in out else RunFiles(out.rpartition("/")[0])
    files.put_json(out.rpartition("/")[2], document)
    return out


class _Signals:
    """SIGTERM ends it as Ctrl-C does; neither interrupts the end itself."""

    closing = False

    def stop(self, number: int, frame: object) -> None:
        if not self.closing:
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[_Signals]:
    signals = _Signals()
    previous = {n: signal.signal(n, signals.stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Job:
    """One evaluation.

    Attributes:
      what: what is measured, in words; known once it runs.
    """

    def __init__(
        self,
        target: Target,
        directory: Path,
        overrides: Sequence[str],
        sets: Sequence[str],
        note: Callable[[str], None],
    ):
        self._target, self._directory, self._names = target, directory, sets
        self.what = target.run.url
        text, source = target.run.get(CONFIG), target.run.location(CONFIG)
        self._training: RlaxSection = of_yaml(text, source).section
        config = of_yaml(text, source, (*_OWN_PORTS, *overrides))
        self._section: RlaxSection = config.section
        if not self._section.evaluation.problems:
            key = "rlax.evaluation.problems"
            raise ConfigError(key, 0, "turns evaluation off in this run: give --problems")
        self._check_names()
        self._registry: Registry = registry_for(self._section)
        self._registry.validate(self._section)
        check_messages(self._section)
        self._context = BuildContext(
            run_dir=directory,
            seed=self._section.seed,
            section=self._section,
            config=config,
            run_url=target.run.url,
        )
        store = self._section.weights.store
        self._store: WeightStore = self._registry.part(
            "weight_store", store, "rlax.weights.store", self._context
        )
        self._note = note
        self._supervision, self._closing = Supervision(), Closing(log.warning)

    def _check_names(self) -> None:
        known = self._section.evaluation.all_sets()
        for name in self._names:
            if name not in known:
                raise ConfigError("--set", name, f"no such set; {alternatives(name, known)}")

    def run(self, console: Console, signals: _Signals, *, show: bool) -> Evaluated:
        thread = LoopThread()
        deadlines = self._section.deadlines
        try:
            if self._target.is_checkpoint:
                reader, name = self._checkpoint()
                session = self._open(thread, self._prompts(console))
                self._read(thread, session, reader, name)
            else:
                version, alive = thread.run(
                    find_version(self._target, self._training, self._closing),
                    3 * deadlines.rpc_s,
                    "finding the weight version",
                    "rlax.deadlines.rpc_s",
                )
                going_on = ", which is still training" if alive else ""
                self.what = f"version {version.version} of {self._target.run.url}{going_on}"
                session = self._open(thread, self._prompts(console))
                what, key = "serving the version", "rlax.deadlines.rpc_s"
                thread.run(session.publish(version), deadlines.rpc_s, what, key)
            sets = [one for one in session.sets if one.name in (self._names or [one.name])]
            return self._measure(thread, session, tuple(sets), console, show=show)
        finally:
            signals.closing = True
            try:
                thread.run_last(self._close(), self._closing.deadline_s)
            finally:
                thread.close()

    async def _close(self) -> None:
        await self._supervision.close()
        await self._closing.aclose()

    def _prompts(self, console: Console) -> RunPrompts:
        with counting(console) as progress:
            context = replace(self._context, progress=progress)

            def part(kind: str, choice: Choice, key: str) -> Any:
                return self._registry.part(kind, choice, key, context)

            return RunPrompts.read(self._section, part, trains=False)

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
        deadline_s, key = self._section.deadlines.startup_s, "rlax.deadlines.startup_s"
        return thread.run(opening, deadline_s, "starting the evaluation", key)

    def _checkpoint(self) -> tuple[CheckpointReader, str]:
        choice = self._section.trainer
        trainer = self._registry.part("trainer", choice, "rlax.trainer", self._context)
        reader = checkpoint_reader(trainer, choice.name)
        known = reader.checkpoints()
        name = checkpoint_name(self._target, known)
        step = next(step for step, its in known.items() if its == name)
        self.what = f"the checkpoint of step {step} of {self._target.run.url}"
        return reader, name

    def _read(
        self, thread: LoopThread, session: Session, reader: CheckpointReader, name: str
    ) -> None:
        """Has the trainer publish a checkpoint, as a version that this session serves."""
        run = self._target.run
        # Where the workers can reach it: they may be on other machines.
        own = f"evaluation/{self._directory.name}"
        here = str(self._directory) if run.is_local else run.location(own)
        publisher = Publisher(
            loop=thread.loop,
            store=self._store,
            directory=f"{here}/weights",
            announcer=session,
            failures=self._supervision,
            deadline_s=self._section.deadlines.weights_s,
            pace=session.pace,
        )
        source = session.source
        tokens = canary_tokens(source.prompts("train"), self._section.rollouts.max_prompt_tokens)
        try:
            reader.publish_checkpoint(CheckpointPort(publisher, tokens), name)
            publisher.wait()
        finally:
            publisher.close()
            if not run.is_local:
                self._closing.callback(run.delete, own)

    def _measure(
        self,
        thread: LoopThread,
        session: Session,
        sets: tuple[ProblemSet, ...],
        console: Console,
        *,
        show: bool,
    ) -> Evaluated:
        sizes = ", ".join(f"{s.name}: {len(s.prompts)} problems x {s.samples}" for s in sets)
        if show:
            console.print(f"evaluating {self.what} ({sizes})")
        columns = (TextColumn("generated and scored"), BarColumn(), MofNCompleteColumn())
        hidden = not (show and console.is_terminal)
        with Progress(*columns, TimeElapsedColumn(), console=console, disable=hidden) as progress:
            bar = progress.add_task("", total=sum(len(one.prompts) for one in sets))
            # No deadline of its own: each of its groups has one.
            return thread.run(
                session.measure(sets, lambda done, of: progress.update(bar, completed=done))
            )
