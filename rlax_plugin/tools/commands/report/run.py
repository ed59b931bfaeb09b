"""Reads the records of a run; missing parts are reported, not an error."""

from __future__ import annotations

import difflib
import math
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.text.secrets import learn_secrets, stripped
from rlax_plugin.run.metrics import file
from rlax_plugin.run.metrics.file import lacking
from rlax_plugin.run.start import descent
from rlax_plugin.run.start.holder import holder
from rlax_plugin.run.state.journal import check_format
from rlax_plugin.tools.commands.report.evaluations import (
    Answered,
    Measured,
    read_answered,
    read_evaluations,
    set_apart,
)
from rlax_plugin.tools.commands.report.history import History, read_history

Columns = dict[str, list[float]]
"""Metric -> a value per recorded step, NaN where a step has none; always has "step"."""


def read_metrics(files: RunFiles, missing: list[str]) -> Columns:
    """Returns all columns so far, in the order of the steps.

    Args:
      missing: gets a sentence about damaged lines.

    Raises:
      RlaxError: there are no metrics yet, or the file cannot be read.
    """
    try:
        recorded = file.read(files.get(file.NAME))
    except FileNotFoundError:
        raise RlaxError("metrics.jsonl does not exist: no step has ended yet") from None
    if recorded.damaged:
        missing.append(str(recorded))
    rows = [metrics for _, metrics in sorted(recorded.by_step.items())]
    return {
        name: [
            float(value) if isinstance(value := row.get(name), int | float) else math.nan
            for row in rows
        ]
        for name in sorted({"step"}.union(*rows))
    }


Progress = Callable[[str, int, int], object]
"""Called with the name of a record that is being read, and its parts read and in total."""

_PARTS = (CONFIG, "config.json", "metrics.jsonl", "summary.json", "journal", "samples")
_LOOKED_AT = 20  # entries of a directory that is no run's, to name runs in it


def no_progress(what: str, done: int, of: int) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class RunData:
    """The records of a run, without its rollouts.

    Attributes:
      name: name of the run; unique in a comparison.
      location: path or URL, as it was given.
      config: the run's merged config, MaxText's keys and ``rlax``.
      started_from: ``RUN@STEP`` of another run, whose weights it started from; empty: none.
      summary: ``summary.json``.
      metrics: name -> a value per recorded step, NaN where a step has none; always has "step".
      ranges: name -> the least and the greatest value of each step, if it stands for several runs.
      measured: held-out evaluations with the run's settings, by set, measure and weight version.
      answered: set of the evaluation after training -> how often its problems were solved.
      history: the content of the journal; None without one.
      missing: sentences about records that cannot be shown, with the reason.
      training: True if a process of this machine trains the run at present.
    """

    name: str
    location: str
    config: dict[str, Any] = field(default_factory=dict)
    started_from: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=lambda: {"step": []})
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    answered: Mapping[str, Answered] = field(default_factory=dict)
    history: History | None = None
    missing: list[str] = field(default_factory=list)
    training: bool = False

    @property
    def steps(self) -> list[float]:
        return self.metrics["step"]

    def setting(self, section: str, key: str, default: Any = None) -> Any:
        """Returns a value below ``rlax.<section>`` of the config."""
        part = (self.config.get("rlax") or {}).get(section)
        return part.get(key, default) if isinstance(part, dict) else default

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Notes for the page that records could not be read; the page shows the rest."""
        try:
            yield
        except RlaxError as error:
            self.missing.append(str(error))


def open_run(run: str) -> RunFiles:
    """Opens the directory of a run.

    Raises:
      ConfigError: it contains no records of a run; the message names runs beside or below it.
    """
    files = RunFiles(run)
    if any(files.exists(part) for part in _PARTS):
        return files
    reason = "is not a run directory: it contains none of " + ", ".join(_PARTS)
    candidates = files.names("")[:_LOOKED_AT]
    parent, name = posixpath.split(files.location().rstrip("/"))
    if below := [name for name in candidates if files.exists(f"{name}/config.yml")]:
        reason += f"; runs in it: {', '.join(below)}"
    elif near := difflib.get_close_matches(
        name, [other for other in RunFiles(parent).names("") if other != name], n=1
    ):
        reason += f"; did you mean {posixpath.join(parent, near[0])!r}?"
    raise ConfigError("RUN", run, reason)


def run_name(files: RunFiles) -> str:
    """Returns the last part of a run's path."""
    return posixpath.basename(files.location().rstrip("/"))


def read_run(files: RunFiles, progress: Progress = no_progress) -> RunData:
    """Reads all records except the rollouts; the run may be active or incomplete.

    Raises:
      RlaxError: the run is of another format, or the file system fails.
    """
    check_format(files)
    run = RunData(run_name(files), files.url)
    with run.noting():
        run.config = _read_config(files)
    run.training = holder(local_state(files, run)) is not None
    with run.noting():
        run.started_from = str(descent.recorded(files) or "")
    with run.noting():
        run.metrics = read_metrics(files, run.missing)
    with run.noting():
        run.summary = files.get_json("summary.json") or {}
        if not run.summary:
            raise RlaxError("summary.json does not exist: the run is unfinished")
    ended = int(run.summary.get("steps", 0)) if run.summary.get("complete") else 0
    last = max(ended, *map(int, run.steps[-1:]), 0)
    if gaps := lacking(map(int, run.steps), last):
        run.missing.append(gaps)
    with run.noting():
        run.measured, others = set_apart(read_evaluations(files))
        run.missing += others
        if not (run.measured or others):
            raise RlaxError("evaluation/ is empty: the run has not been evaluated")
        run.answered = read_answered(files)
    run.history = read_history(files, progress)
    run.missing += run.history.problems if run.history else ["journal/ does not exist"]
    return run


def local_state(files: RunFiles, run: RunData) -> Path:
    """Returns the directory that has the lock of a run, if it is on this machine."""
    own = (run.config.get("rlax") or {}).get("state_dir")
    return Path(str(own)) if own else Path(files.location())


def _read_config(files: RunFiles) -> dict[str, Any]:
    try:
        document = yaml.safe_load(files.get(CONFIG))
    except FileNotFoundError:
        raise RlaxError("config.yml does not exist") from None
    except yaml.YAMLError as error:
        raise RlaxError(f"config.yml is damaged: {error}") from error
    if not isinstance(document, dict):
        raise RlaxError("config.yml is damaged: it is not a mapping of keys to values")
    learn_secrets(document)  # for errors that are shown
    return stripped(document)
