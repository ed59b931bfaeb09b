"""``rlax eval``: generates and scores samples of many prompts with weights of a run or config.

It prints and writes measures of the sets of ``rlax.evaluation``. If ``--out`` is a Parquet file, it
writes a table with the pass rate of every prompt of a split instead, sampled as in training. Such a
split may be large, so the finished prompts are kept while the command runs; see ``parts``.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rlax_plugin.base.errors import ConfigError, RlaxError, alternatives
from rlax_plugin.base.files.places import check_file_writable, check_new_file
from rlax_plugin.base.files.private import check_private_run
from rlax_plugin.base.files.run_files import RunFiles, file_at
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.text.secrets import hidden
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.config.identity import changes_results
from rlax_plugin.data.curation.pass_rate_files import About, MeasuredRates, measured, write_table
from rlax_plugin.data.prompts.checking import training_prompts
from rlax_plugin.data.prompts.ids import domains_of, ids_of
from rlax_plugin.data.prompts.of_run import Part, RunPrompts
from rlax_plugin.data.prompts.record import identity
from rlax_plugin.data.prompts.table import PromptTable
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.run.display.dashboard import reward_errors
from rlax_plugin.run.evaluation.measures import label
from rlax_plugin.run.evaluation.problems import Answered, ProblemSet
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.tools.commands.evaluate.measured_policy import (
    Origin,
    Policy,
    ReadPrompts,
    working_directory,
)
from rlax_plugin.tools.commands.evaluate.parts import Counts, Parts
from rlax_plugin.tools.commands.evaluate.session import Session
from rlax_plugin.weights.named import find_target

log = logging.getLogger("rlax.evaluate")

# Of a table of pass rates: the sets of an evaluation are not asked, so they need not even be read.
_NO_EVALUATION = "rlax.evaluation.problems=0"
_NO_OUT = "must be given with a config: the file of the result, such as eval.json or rates.parquet"
_TABLE_SPLIT, _TABLE_SAMPLES = "train", 8


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of the command.

    Attributes:
      target: a run, RUN@VERSION, RUN/checkpoints/NAME, or a config.
      version, step: weight version, or step of a checkpoint, of the run.
      split, problems, samples, k: keys of ``rlax.evaluation``; None: as the config has them, but
        without each k above ``samples``. Of a table, ``split`` and ``samples`` say which prompts
        are measured, and how often.
      sets: names of the sets to evaluate; empty: all.
      out: file of the result; a table of pass rates if it ends in ``.parquet``; None: a file in the
        run's directory.
      overrides: ``key=value`` arguments, on top of the config.
    """

    target: str
    version: int | None = None
    step: int | None = None
    split: str | None = None
    problems: int | None = None
    samples: int | None = None
    k: Sequence[int] = ()
    sets: Sequence[str] = ()
    out: str | None = None
    overrides: Sequence[str] = ()

    @property
    def is_table(self) -> bool:
        """True if a table of pass rates is to be written."""
        return self.out is not None and self.out.endswith(".parquet")

    def origin(self) -> Origin:
        """Returns the origin of the policy to evaluate.

        Raises:
          ConfigError: there is no such run or config, or an option has no effect.
        """
        return self._origin((*self._k_of_samples(), *self.keys()))

    def _k_of_samples(self) -> Iterator[str]:
        """Yields keys that leave out each k of the config above the number of samples asked for."""
        if self.samples is None or self.k or self.is_table:
            return
        others = [one for one in self.overrides if not one.startswith(("rlax.evaluation", "rlax="))]
        evaluation = self._origin(others).config.section.evaluation
        for name, sizes in (("k", evaluation.k), ("majority_k", evaluation.majority_k)):
            if max(sizes, default=0) > self.samples:
                left = [size for size in sizes if size <= self.samples]
                yield f"rlax.evaluation.{name}={left}"

    def _origin(self, overrides: Sequence[str]) -> Origin:
        if not self._is_config:
            target = find_target(self.target, self.version, self.step, also="a config (.yml), ")
            return Origin.of_run(target, overrides)
        for name, value in (("--version", self.version), ("--step", self.step)):
            if value is not None:
                raise ConfigError(name, value, "is of a run: give a run in place of a config")
        return Origin.of_config(self.target, overrides)

    def keys(self) -> tuple[str, ...]:
        """Returns the options and overrides as ``key=value``.

        Raises:
          ConfigError: an option has no effect.
        """
        if self.is_table:
            for name, value in (
                ("--problems", self.problems),
                ("--k", self.k),
                ("--set", self.sets),
            ):
                if value:
                    reason = f"has no effect on a table of pass rates (--out = {self.out!r})"
                    raise ConfigError(name, value, f"{reason}, which has every prompt of --split")
            return (*self.overrides, _NO_EVALUATION)
        values = {
            "split": self.split,
            "problems": self.problems,
            "samples": self.samples,
            "k": f"[{','.join(map(str, self.k))}]" if self.k else None,
        }
        keys = (f"rlax.evaluation.{key}={v}" for key, v in values.items() if v is not None)
        return (*keys, *self.overrides)

    def again(self, version: int) -> str:
        """Says how to continue a table of pass rates.

        Args:
          version: version of the weights, as an active run has a newer one by then.
        """
        names_weights = "@" in self.target or "/checkpoints/" in self.target
        if self._is_config or names_weights or (self.version, self.step) != (None, None):
            return "the same command continues"
        return f"the same command with --version {version} continues"

    @property
    def _is_config(self) -> bool:
        return self.target.endswith((".yml", ".yaml"))


def evaluate(asked: Asked, *, as_json: bool = False) -> None:
    """Evaluates, prints the result, and writes it.

    Without ``out``, measures are written to ``RUN/evaluation/eval-<version>.json``. A result with
    other settings is not overwritten: the new file is then ``eval-<version>-2.json``.

    Args:
      as_json: prints the result as JSON instead of a table.

    Raises:
      RlaxError: the evaluation failed, and the message names the logs and how to continue, if that
        is possible; or only writing failed, and it names a file with the result.
    """
    origin = asked.origin()
    kind = _PassRates if asked.is_table else _Measures
    kind.check(asked, origin)
    with working_directory("eval") as (directory, console, signals):
        job = kind(asked, origin, directory, log.warning if as_json else console.print)
        try:
            job.run(console, signals, show=not as_json)
            # Printing may fail, and a table takes hours.
            path = job.write() if asked.is_table else ""
            if as_json:
                console.print(json.dumps(job.document(), indent=2), soft_wrap=True)
            else:
                for part in job.shown():
                    console.print(part)
            path = path or job.write()
            if not as_json:
                console.print(f"written to {path}")
        except KeyboardInterrupt:
            if job.kept:
                console.print(f"stopped; {job.kept}")
            raise
        except ConfigError:
            raise
        except RlaxError as error:
            raise RlaxError(f"{error}; {job.kept}" if job.kept else str(error)) from error


class _Job(ABC):
    """One evaluation."""

    def __init__(
        self,
        asked: Asked,
        origin: Origin,
        directory: Path,
        note: Callable[[str], None],
        read: ReadPrompts,
    ):
        self._asked, self._origin, self._directory = asked, origin, directory
        self._policy = Policy(origin, directory, note, read)

    @property
    def kept(self) -> str:
        """A sentence about the finished part of an unfinished evaluation; "" if there is none."""
        return ""

    @property
    def _what(self) -> str:
        """A description of the weights that are evaluated; known once it runs."""
        return self._policy.what

    def run(self, console: Console, signals: Signals, *, show: bool) -> None:
        """Generates and scores all samples."""
        with self._policy.served(console, signals, show=show) as (thread, session, waiting):
            sizes, done, total = self._begin(session)
            thread.run(session.worker_ready(waiting))  # which has a deadline
            began_s, began = time.monotonic(), done
            waiting.begin(f"evaluating {self._what} ({sizes})")

            def advance() -> None:
                nonlocal done
                done += 1
                left_s = (time.monotonic() - began_s) / (done - began) * (total - done)
                minutes = math.ceil(left_s / 60)
                waiting.progress(f"{done:,} of {total:,} prompts, about {minutes:,} min left")

            # No deadline of its own: each of its groups has one.
            thread.run(self._ask(session, advance))

    @abstractmethod
    def _begin(self, session: Session) -> tuple[str, int, int]:
        """Returns the sizes in words, the number of finished prompts, and that of all."""

    @abstractmethod
    async def _ask(self, session: Session, advance: Callable[[], None]) -> None:
        """Generates and scores the unfinished prompts; ``advance`` is called after each."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Returns the result as JSON."""

    @abstractmethod
    def shown(self) -> Iterator[Table | str]:
        """Yields the result as it is printed."""

    @abstractmethod
    def write(self) -> str:
        """Writes the result, and returns the path."""


class _Measures(_Job):
    """Measures of the sets of ``rlax.evaluation``."""

    _evaluated: Evaluated

    def __init__(self, asked: Asked, origin: Origin, directory: Path, note: Callable[[str], None]):
        evaluation = origin.config.section.evaluation
        if not evaluation.problems:
            key = "rlax.evaluation.problems"
            raise ConfigError(key, 0, "turns evaluation off in this run: give --problems")
        all_sets = origin.config.section.environments or evaluation.all_sets()
        for name in asked.sets:
            if name not in all_sets:
                raise ConfigError("--set", name, f"no such set; {alternatives(name, all_sets)}")
        super().__init__(
            asked, origin, directory, note, functools.partial(RunPrompts.read, trains=False)
        )
        self._sets: tuple[ProblemSet, ...] = ()

    @staticmethod
    def check(asked: Asked, origin: Origin) -> None:
        """Checks that the result can be written.

        Raises:
          ConfigError: it cannot.
        """
        if asked.out is not None:
            check_file_writable("--out", asked.out, Deadlines().rpc_s)
        elif origin.target is None:
            raise ConfigError("--out", None, _NO_OUT)
        else:
            check_private_run(origin.target.run)

    def _begin(self, session: Session) -> tuple[str, int, int]:
        wanted = self._asked.sets
        self._sets = tuple(
            one for one in session.generation.evaluator.sets if one.name in (wanted or [one.name])
        )
        sizes = (f"{s.name}: {len(s.prompts)} problems x {s.samples}" for s in self._sets)
        return ", ".join(sizes), 0, sum(len(one.prompts) for one in self._sets)

    async def _ask(self, session: Session, advance: Callable[[], None]) -> None:
        self._evaluated = await session.measure(self._sets, lambda done, of: advance())

    def document(self) -> dict[str, Any]:
        overrides = list(map(hidden, self._asked.keys()))
        return self._evaluated.to_json() | {"measured": self._what, "overrides": overrides}

    def shown(self) -> Iterator[Table | str]:
        yield measures_table(self._evaluated, self._what)
        for name in self._evaluated.failures:
            yield f"{name}: {reward_errors(self._evaluated, name)}"

    def write(self) -> str:
        document, out, target = self.document(), self._asked.out, self._origin.target
        try:
            if out is None and target is not None:
                return write_result(target.run, document)
            assert out is not None, "see check"
            files, name = file_at(out)
            files.put_json(name, document)
            return out
        except RlaxError as error:
            kept = self._directory / "result.json"
            kept.write_text(json.dumps(document, indent=2) + "\n")
            raise RlaxError(f"{error}; the result is in {kept}") from error


class _PassRates(_Job):
    """A table with the pass rate of every prompt of a split."""

    def __init__(self, asked: Asked, origin: Origin, directory: Path, note: Callable[[str], None]):
        super().__init__(asked, origin, directory, note, self._read)
        self._split = asked.split or _TABLE_SPLIT
        self._prompts: Sequence[Prompt] = ()
        self._parts: Parts | None = None
        self._again = ""

    @staticmethod
    def check(asked: Asked, origin: Origin) -> None:
        """Checks that the table can be written.

        Raises:
          ConfigError: it cannot, or exists already.
        """
        out = asked.out or ""
        check_file_writable("--out", out, rpc_s := Deadlines().rpc_s)
        # A process that was killed at its end has written the file, and not removed its parts.
        if not RunFiles(f"{out}.parts").exists("about.json"):
            check_new_file("--out", out, rpc_s, ".parquet")

    @property
    def kept(self) -> str:
        if self._parts is None:
            return ""
        done, of = int(self._parts.done_n.sum()), len(self._parts.done_n)
        return f"{done:,} of {of:,} prompts are kept; {self._again}"

    def run(self, console: Console, signals: Signals, *, show: bool) -> None:
        try:
            super().run(console, signals, show=show)
        finally:
            if self._parts is not None:
                self._parts.flush()
                self._parts.close()

    def _read(self, section: RlaxSection, part: Part) -> RunPrompts:
        section.check_one_environment("a table of pass rates")
        source: PromptSource = part("prompt_source", section.prompt_source, "rlax.prompt_source")
        try:
            self._prompts = training_prompts(section, source, self._split)
        except ConfigError as error:
            if error.value != self._split:
                raise
            # A prompt source does not know which option asks for the split.
            raise ConfigError("--split", self._split, error.reason) from None
        return RunPrompts(source, self._prompts, ())

    def _begin(self, session: Session) -> tuple[str, int, int]:
        section, asked = self._policy.section, self._asked
        samples = asked.samples or _TABLE_SAMPLES
        self._problems = session.training_set(section, self._split, self._prompts, samples)
        self._about = About(
            run=self._origin.name,
            weights=session.weights,
            version=session.version,
            sampling=self._problems.sampling,
            pass_threshold=section.curation.pass_threshold,
        )
        self._rows = first_of_each(self._prompts)
        parts = Parts(asked.out or "", len(self._prompts), self._about)
        parts.begin(self._described(session))
        self._parts, self._again = parts, asked.again(session.version)
        total, done = len(self._rows), int(parts.done_n[self._rows].sum())
        before = f", of which {done:,} are done" if done else ""
        return f"{total:,} prompts x {samples}{before}", done, total

    def _described(self, session: Session) -> dict[str, Any]:
        """Returns everything on which a pass rate depends."""
        section, problems = self._policy.section, self._problems
        sampling = problems.sampling
        return {
            "weights": session.weights,
            "version": session.version,
            "split": self._split,
            "prompts": identity(problems.prompts)[1],
            "samples": problems.samples,
            "seed": section.seed,
            "pass_threshold": section.curation.pass_threshold,
            **{name: getattr(sampling, name) for name in sampling.__dataclass_fields__},
            "engine": section.rollouts.engine.model_dump(mode="json"),
            "environment": section.environment.model_dump(mode="json"),
            "episodes": section.episodes.model_dump(mode="json"),
            "rewards": [one.model_dump(mode="json") for one in section.rewards],
        }

    async def _ask(self, session: Session, advance: Callable[[], None]) -> None:
        parts, threshold = self._parts, self._policy.section.curation.pass_threshold
        assert parts is not None

        async def hand(index: int, answered: Answered) -> None:
            await parts.add(Counts.of(index, answered, threshold))
            advance()

        left = self._rows[~parts.done_n[self._rows]]
        await session.ask(self._problems, (int(i) for i in left), hand)

    @functools.cached_property
    def _rates(self) -> MeasuredRates:
        rows, parts = self._rows, self._parts
        assert parts is not None
        if missing := int(np.count_nonzero(~parts.done_n[rows])):
            raise RlaxError(f"{parts.place} lacks {missing:,} prompts: start the command again")
        return measured(
            {
                "id": ids_of(self._prompts, rows),
                "domain": domains_of(self._prompts, rows),
                **dict(zip(Counts._fields[1:], parts.counts[:, rows], strict=True)),
                "version": np.full(len(rows), self._about.version),
                "groups": np.ones(len(rows), np.int64),
            },
            self._about,
        )

    def document(self) -> dict[str, Any]:
        domains = summaries(self._rates)
        return {"measured": self._what, "file": self._asked.out, "domains": domains}

    def shown(self) -> Iterator[Table | str]:
        yield summary_table(summaries(self._rates), self._what, self._problems.samples)

    def write(self) -> str:
        assert self._parts is not None
        out = self._parts.out
        write_table(out, self._rates)
        self._parts.remove()
        self._parts = None  # nothing is kept any more
        return out


def write_result(run: RunFiles, document: Mapping[str, Any]) -> str:
    """Writes ``evaluation/eval-<version>.json``, or a further file beside it; returns its path."""
    first = f"evaluation/eval-{document['version']:08d}"
    for name in itertools.chain([first], (f"{first}-{n}" for n in itertools.count(2))):
        there = run.get_json(f"{name}.json")
        if there is None or _settings(there) == _settings(document):
            run.put_json(f"{name}.json", document)
            return f"{run.url.rstrip('/')}/{name}.json"
    raise AssertionError("there is always a free name")


def _settings(document: Mapping[str, Any]) -> tuple[object, list[str]]:
    """Returns the settings on which a result depends, besides the version."""
    return list(filter(changes_results, document.get("overrides", []))), list(document["sets"])


def first_of_each(prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the index of each prompt's first occurrence, as a table has each prompt once."""
    if isinstance(prompts, PromptTable):
        return np.arange(len(prompts))
    first: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first.setdefault(prompt.id, index)
    return np.array(list(first.values()), np.int64)


_ALL = "all"


def measures_table(found: Evaluated, title: str) -> Table:
    """Returns a table with every measure of every set and its interval."""
    table = Table(title=title, caption="95 % bootstrap intervals over problems")
    for column in ("set", "measure", "value", "95 % interval"):
        table.add_column(column, justify="left" if column in ("set", "measure") else "right")
    for name, measures in found.sets.items():
        last = list(measures)[-1]
        for index, (measure, estimate) in enumerate(measures.items()):
            low, high = estimate.ci95
            about = [name, f"{estimate.problems} problems", f"x {estimate.n} samples"]
            table.add_row(
                about[index] if index < len(about) else "",
                label(measure),
                f"{estimate.value:.3f}",
                f"[{low:.3f}, {high:.3f}]",
                end_section=measure == last,
            )
    return table


def summaries(rates: MeasuredRates) -> list[dict[str, Any]]:
    """Returns figures of all prompts, and of each domain if there are several, largest first."""
    domains = rates.table.column("domain").combine_chunks().dictionary_encode()
    names: list[str | None] = domains.dictionary.to_pylist()
    found = [_summary(rates, _ALL, np.ones(rates.table.num_rows, bool))]
    if len(names) > 1:
        of_n = domains.indices.fill_null(-1).to_numpy()
        each = [_summary(rates, str(name), of_n == i) for i, name in enumerate(names)]
        found += sorted(each, key=lambda one: -one["prompts"])
    return found


def _summary(rates: MeasuredRates, name: str, rows: np.ndarray) -> dict[str, Any]:
    passed, failed = (values[rows] for values in rates.counts())
    scored = passed + failed
    samples = scored + rates.column("errored")[rows]
    measured = scored > 0
    rate = passed[measured] / scored[measured]

    def mean(column: str) -> float:
        total = float(samples.sum())
        return float(rates.column(column)[rows].sum()) / total if total else 0.0

    return {
        "domain": name,
        "prompts": len(scored),
        "unmeasured": int(np.count_nonzero(~measured)),
        "never_passed": int(np.count_nonzero(rate == 0)),
        "always_passed": int(np.count_nonzero(rate == 1)),
        "between": int(np.count_nonzero((rate > 0) & (rate < 1))),
        "pass_rate": float(rate.mean()) if len(rate) else None,
        "tokens": mean("tokens"),
        "truncated": mean("truncated"),
        "errored": mean("errored"),
    }


def summary_table(found: Sequence[dict[str, Any]], what: str, samples: int) -> Table:
    """Returns a table of prompts by pass rate; errors have a column only if there are some."""
    caption = f"never, always, between: none, all or some of a prompt's {samples} samples passed"
    if unmeasured := found[0]["unmeasured"]:
        caption += f"; {unmeasured:,} prompts, whose rewards all failed, are none of these"
    errors = found[0]["errored"] > 0
    table = Table(title=what, caption=caption, padding=(0, 1, 0, 0))
    table.add_column("domain", overflow="fold")
    counts = ("prompts", "rate", "never", "always", "between")
    for column in (*counts, "tokens", "truncated", *(["errors"] if errors else [])):
        table.add_column(column, justify="right")
    for index, one in enumerate(found):
        rate = one["pass_rate"]
        table.add_row(
            one_line(one["domain"], 40) or "(none)",
            f"{one['prompts']:,}",
            "" if rate is None else f"{rate:.3f}",
            f"{one['never_passed']:,}",
            f"{one['always_passed']:,}",
            f"{one['between']:,}",
            f"{one['tokens']:,.1f}",
            f"{one['truncated']:.1%}",
            *([f"{one['errored']:.1%}"] if errors else []),
            end_section=index == 0,
        )
    return table
