"""``rlax measure``: generates and scores samples of every prompt, and writes their pass rates."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rlax_plugin.commands.evaluate.measured_policy import Origin, Policy, working_directory
from rlax_plugin.commands.evaluate.session import Session
from rlax_plugin.commands.measure.parts import Counts, Parts
from rlax_plugin.commands.measure.show import summaries, summary_table
from rlax_plugin.commands.target import find_target
from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.evaluation.problems import Answered, ProblemSet
from rlax_plugin.pass_rates.files import About, MeasuredRates, measured, write_table
from rlax_plugin.pass_rates.joined_tables import domains_of
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.prompts.checking import training_prompts
from rlax_plugin.prompts.ids import ids_of
from rlax_plugin.prompts.of_run import Part, RunPrompts
from rlax_plugin.prompts.record import identity
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.places import check_file_writable, check_new_file
from rlax_plugin.records.private import check_private_run
from rlax_plugin.start.signals import Signals
from rlax_plugin.text.command_lines import pasteable
from rlax_plugin.types import Prompt

log = logging.getLogger("rlax.measure")

# The sets of an evaluation are not asked, so they need not even be read.
_NO_EVALUATION = "rlax.evaluation.problems=0"
_LINE_S = 60.0  # between two lines of progress where no terminal shows a bar


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of the command.

    Attributes:
      target: a run, RUN@VERSION, RUN/checkpoints/NAME, or a config.
      version, step: weight version, or step of a checkpoint, of the run.
      samples: number of samples of each prompt.
      split: split of the prompts to measure.
      out: file to write; None: see ``default_out``.
      overrides: ``key=value`` arguments.
    """

    target: str
    version: int | None
    step: int | None
    samples: int
    split: str
    out: str | None
    overrides: Sequence[str] = ()

    def origin(self) -> Origin:
        """Returns the origin of the policy to measure.

        Raises:
          ConfigError: there is no such run or config.
        """
        overrides = (*self.overrides, _NO_EVALUATION)
        if self._is_config:
            return self._of_config(overrides)
        target = find_target(
            self.target, self.version, self.step, argument="TARGET", also="a config (.yml), "
        )
        return Origin.of_run(target, overrides)

    def _of_config(self, overrides: Sequence[str]) -> Origin:
        for name, value in (("--version", self.version), ("--step", self.step)):
            if value is not None:
                raise ConfigError(name, value, "is of a run: give a run in place of a config")
        return Origin.of_config(self.target, overrides)

    def command(self, out: str, version: int) -> str:
        """Returns the command line that continues this measurement.

        Args:
          out: the file that is written.
          version: version of the weights, as an active run has a newer one by then.
        """
        words = ["measure", self.target, "--samples", str(self.samples), "--out", out]
        of_run = not (self._is_config or self.step is not None or "/checkpoints/" in self.target)
        given = {"--version": version if of_run else None, "--step": self.step}
        for name, value in given.items():
            words += [name, str(value)] if value is not None and f"@{value}" not in words[1] else []
        words += ["--split", self.split] if self.split != "train" else []
        return pasteable("rlax", *words, *self.overrides)

    @property
    def _is_config(self) -> bool:
        return self.target.endswith((".yml", ".yaml"))


def default_out(asked: Asked, origin: Origin) -> str:
    """Returns ``RUN/pass_rates/...`` for a run, a file in the working directory for a config."""
    target = origin.target
    if target is None:
        name = f"{Path(asked.target).stem}-{asked.split}"
        return f"{name}.parquet"
    at = target.version if target.version is not None else target.checkpoint or target.step
    name = asked.split if at is None else f"{asked.split}-{at}"
    return f"{target.run.url.rstrip('/')}/pass_rates/{name}.parquet"


def measure(asked: Asked, *, as_json: bool = False) -> None:
    """Measures, prints a summary, and writes the table.

    Raises:
      RlaxError: the measurement failed; finished prompts are kept, and the message says how to
        continue.
    """
    origin = asked.origin()
    if not asked.out and origin.target is not None:
        check_private_run(origin.target.run)
    out = asked.out or default_out(asked, origin)
    check_file_writable("--out", out, rpc_s := Deadlines().rpc_s)
    # A process that was killed at its end has written the file, and not removed its parts.
    if not RunFiles(f"{out}.parts").exists("about.json"):
        check_new_file("--out", out, rpc_s, ".parquet")
    with working_directory("measure") as (directory, console, signals):
        job = _Job(asked, origin, out, directory, log.warning if as_json else console.print)
        try:
            rates = job.run(console, signals, show=not as_json)
        except KeyboardInterrupt:
            if job.kept:
                console.print(f"stopped; {job.kept}")
            raise
        except ConfigError:
            raise
        except RlaxError as error:
            raise RlaxError(f"{error}; {job.kept}" if job.kept else str(error)) from error
        found = summaries(rates)
        if as_json:
            document = {"measured": job.what, "file": out, "domains": found}
            console.print(json.dumps(document, indent=2), soft_wrap=True)
        else:
            console.print(summary_table(found, job.what, asked.samples))
            console.print(f"written to {out}")


class _Job:
    """One measurement.

    Attributes:
      what: a description of the weights that are measured; known once it runs.
      kept: a sentence about the finished prompts of an unfinished measurement; "" if there are
        none.
    """

    def __init__(
        self, asked: Asked, origin: Origin, out: str, directory: Path, note: Callable[[str], None]
    ):
        self._asked, self._origin, self._out = asked, origin, out
        self._policy = Policy(origin, directory, note, self._read)
        self._prompts: Sequence[Prompt] = ()
        self._parts: Parts | None = None
        self._command = ""

    @property
    def what(self) -> str:
        return self._policy.what

    @property
    def kept(self) -> str:
        if self._parts is None:
            return ""
        done, of = int(self._parts.done_n.sum()), len(self._parts.done_n)
        return f"{done:,} of {of:,} prompts are kept; continue with: {self._command}"

    def run(self, console: Console, signals: Signals, *, show: bool) -> MeasuredRates:
        """Measures the unfinished prompts, and writes the table."""
        try:
            with self._policy.served(console, signals, show=show) as (thread, session):
                problems = session.training_set(
                    self._policy.section, self._asked.split, self._prompts, self._asked.samples
                )
                about = self._about(session, problems)
                parts = Parts(self._out, len(self._prompts), about)
                parts.begin(self._described(session, problems))
                self._parts = parts
                self._command = self._asked.command(self._out, session.version)
                self._ask(thread, session, problems, parts, console, show=show)
        finally:
            if self._parts is not None:
                self._parts.flush()
                self._parts.close()
        rates = _table(parts, self._prompts, about)
        write_table(self._out, rates)
        parts.remove()
        return rates

    def _read(self, section: RlaxSection, part: Part) -> RunPrompts:
        source: PromptSource = part("prompt_source", section.prompt_source, "rlax.prompt_source")
        split = self._asked.split
        try:
            self._prompts = training_prompts(section, source, split)
        except ConfigError as error:
            if error.value != split:
                raise
            # A prompt source does not know which option asks for the split.
            raise ConfigError("--split", split, error.reason) from None
        return RunPrompts(source, self._prompts, ())

    def _about(self, session: Session, problems: ProblemSet) -> About:
        return About(
            run=self._origin.name,
            weights=session.weights,
            version=session.version,
            sampling=problems.sampling,
            pass_threshold=self._policy.section.curation.pass_threshold,
        )

    def _described(self, session: Session, problems: ProblemSet) -> dict[str, Any]:
        """Returns everything on which a pass rate depends."""
        section = self._policy.section
        sampling = problems.sampling
        rollouts = section.rollouts
        return {
            "weights": session.weights,
            "version": session.version,
            "split": self._asked.split,
            "prompts": identity(problems.prompts)[1],
            "samples": problems.samples,
            "seed": section.seed,
            "pass_threshold": section.curation.pass_threshold,
            **{name: getattr(sampling, name) for name in sampling.__dataclass_fields__},
            "engine": rollouts.engine.model_dump(mode="json"),
            "environment": section.environment.model_dump(mode="json"),
            "episodes": section.episodes.model_dump(mode="json"),
            "rewards": [one.model_dump(mode="json") for one in section.rewards],
        }

    def _ask(
        self,
        thread: LoopThread,
        session: Session,
        problems: ProblemSet,
        parts: Parts,
        console: Console,
        *,
        show: bool,
    ) -> None:
        wanted = first_of_each(problems.prompts)
        left = wanted[~parts.done_n[wanted]]
        done = len(wanted) - len(left)
        threshold = self._policy.section.curation.pass_threshold
        if show:
            before = f", of which {done:,} are done" if done else ""
            what = f"{len(wanted):,} prompts x {problems.samples}{before}"
            console.print(f"measuring {self.what} ({what})")
        self._policy.wait_for_worker(thread, session, console, show=show)
        with _progress(console, done, len(wanted), show=show) as advance:

            async def hand(index: int, answered: Answered) -> None:
                await parts.add(Counts.of(index, answered, threshold))
                advance()

            # No deadline of its own: each of its groups has one.
            thread.run(session.ask(problems, (int(i) for i in left), hand))


@contextmanager
def _progress(
    console: Console, done: int, total: int, *, show: bool
) -> Iterator[Callable[[], None]]:
    """Shows a progress bar on a terminal, and occasional lines elsewhere."""
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    began_s = told_s = time.monotonic()
    now = done
    shown = show and console.is_terminal
    with Progress(
        *columns, *times, console=console, disable=not shown, speed_estimate_period=300
    ) as bars:
        bar = bars.add_task("", total=total, completed=done)

        def advance() -> None:
            nonlocal now, told_s
            now += 1
            bars.update(bar, completed=now)
            at_s = time.monotonic()
            if show and not shown and at_s - told_s > _LINE_S:
                told_s = at_s
                left_s = (at_s - began_s) / (now - done) * (total - now)
                minutes = math.ceil(left_s / 60)
                console.print(f"{now:,} of {total:,} prompts, about {minutes:,} min left")

        yield advance


def first_of_each(prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the index of each prompt's first occurrence, as a table has each prompt once."""
    if isinstance(prompts, PromptTable):
        return np.arange(len(prompts))
    first: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first.setdefault(prompt.id, index)
    return np.array(list(first.values()), np.int64)


def _table(parts: Parts, prompts: Sequence[Prompt], about: About) -> MeasuredRates:
    rows = first_of_each(prompts)
    if missing := int(np.count_nonzero(~parts.done_n[rows])):
        raise RlaxError(f"{parts.place} lacks {missing:,} prompts: start the command again")
    counts = dict(zip(Counts._fields[1:], parts.counts[:, rows], strict=True))
    return measured(
        {
            "id": ids_of(prompts, rows),
            "domain": domains_of(prompts, rows),
            **counts,
            "version": np.full(len(rows), about.version),
            "groups": np.ones(len(rows), np.int64),
        },
        about,
    )
