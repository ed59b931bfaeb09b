"""``rlax eval``: evaluates a run's weights and writes a table of measures."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rlax_plugin.commands.evaluate.measured_policy import Origin, Policy, working_directory
from rlax_plugin.commands.evaluate.session import Session
from rlax_plugin.commands.evaluate.show import measures_table
from rlax_plugin.commands.target import Target
from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.config import Deadlines
from rlax_plugin.config.identity import decides
from rlax_plugin.errors import ConfigError, RlaxError, alternatives
from rlax_plugin.evaluation.problems import ProblemSet
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.metrics.dashboard import reward_errors
from rlax_plugin.prompts.of_run import RunPrompts
from rlax_plugin.records.files import RunFiles, file_at
from rlax_plugin.records.places import check_file_writable
from rlax_plugin.records.private import check_private_run
from rlax_plugin.start.signals import Signals
from rlax_plugin.text.secrets import hidden

log = logging.getLogger("rlax.evaluate")


def evaluate(
    target: Target,
    overrides: Sequence[str] = (),
    *,
    sets: Sequence[str] = (),
    out: str | None = None,
    as_json: bool = False,
) -> None:
    """Evaluates, prints the measures, and writes ``RUN/evaluation/eval-<version>.json``.

    A result with other settings is not overwritten: the new file is then
    ``eval-<version>-2.json``.

    Args:
      overrides: ``key=value`` arguments, on top of the run's config.
      sets: names of the sets to evaluate; empty: all.
      out: file for the result instead.
      as_json: prints the result as JSON instead of a table.

    Raises:
      RlaxError: the evaluation failed, and the message names the logs; or only writing failed, and
        it names a file with the result.
    """
    if out is not None:
        check_file_writable("--out", out, Deadlines().rpc_s)
    else:
        check_private_run(target.run)
    with working_directory("eval") as (directory, console, signals):
        note = log.warning if as_json else console.print
        job = _Job(Origin.of_run(target, overrides), directory, sets, note)
        found = job.run(console, signals, show=not as_json)
        document = found.to_json() | {
            "measured": job.what,
            "overrides": list(map(hidden, overrides)),
        }
        if as_json:
            console.print(json.dumps(document, indent=2), soft_wrap=True)
        else:
            console.print(measures_table(found, job.what))
            for name in found.failures:
                console.print(f"{name}: {reward_errors(found, name)}")
        try:
            path = write_result(target.run, document, out)
        except RlaxError as error:
            kept = directory / "result.json"
            kept.write_text(json.dumps(document, indent=2) + "\n")
            raise RlaxError(f"{error}; the result is in {kept}") from error
        if not as_json:
            console.print(f"written to {path}")


def _name(run: RunFiles, document: Mapping[str, Any]) -> str:
    """Returns the first file name that is free or has a result with the same settings."""
    first = f"evaluation/eval-{document['version']:08d}"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(
        f"{name}.json"
        for name in names
        if (there := run.get_json(f"{name}.json")) is None
        or _settings(there) == _settings(document)
    )


def _settings(document: Mapping[str, Any]) -> tuple[object, list[str]]:
    """Returns the settings on which a result depends, besides the version."""
    return list(filter(decides, document.get("overrides", []))), list(document["sets"])


def write_result(run: RunFiles, document: dict[str, Any], out: str | None) -> str:
    if out is None:
        name = _name(run, document)
        run.put_json(name, document)
        return f"{run.url.rstrip('/')}/{name}"
    files, name = file_at(out)
    files.put_json(name, document)
    return out


class _Job:
    """One evaluation."""

    def __init__(
        self,
        origin: Origin,
        directory: Path,
        sets: Sequence[str],
        note: Callable[[str], None],
    ):
        self._names = sets
        evaluation = origin.config.section.evaluation
        if not evaluation.problems:
            key = "rlax.evaluation.problems"
            raise ConfigError(key, 0, "turns evaluation off in this run: give --problems")
        known = evaluation.all_sets()
        for name in sets:
            if name not in known:
                raise ConfigError("--set", name, f"no such set; {alternatives(name, known)}")
        self._policy = Policy(origin, directory, note, partial(RunPrompts.read, trains=False))

    @property
    def what(self) -> str:
        """A description of the weights that are measured; known once it runs."""
        return self._policy.what

    def run(self, console: Console, signals: Signals, *, show: bool) -> Evaluated:
        with self._policy.served(console, signals, show=show) as (thread, session):
            sets = [one for one in session.sets if one.name in (self._names or [one.name])]
            return self._measure(thread, session, tuple(sets), console, show=show)

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
        self._policy.wait_for_worker(thread, session, console, show=show)
        columns = (TextColumn("generated and scored"), BarColumn(), MofNCompleteColumn())
        hidden = not (show and console.is_terminal)
        with Progress(*columns, TimeElapsedColumn(), console=console, disable=hidden) as progress:
            bar = progress.add_task("", total=sum(len(one.prompts) for one in sets))
            # No deadline of its own: each of its groups has one.
            return thread.run(
                session.measure(sets, lambda done, of: progress.update(bar, completed=done))
            )
