"""The command ``rlax report``: writes pages about runs."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bars

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.private import check_private_run
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics import spans as recorded
from rlax_plugin.run.metrics.spans import TRAINER, Span, StepOfSpans
from rlax_plugin.tools.commands.report.curation import curation_section
from rlax_plugin.tools.commands.report.page import compare_page, report_page, without_reload
from rlax_plugin.tools.commands.report.repeats import repeats
from rlax_plugin.tools.commands.report.rollouts import read_rollouts
from rlax_plugin.tools.commands.report.run import (
    Progress,
    RunData,
    no_progress,
    open_run,
    read_run,
    run_name,
)
from rlax_plugin.tools.commands.report.series import COLOURS


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Shows progress bars of reading on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {}

        def progress(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=of)

        yield progress


class ReportPage:
    """The page of one run.

    Args:
      run: the run's directory, a path or an fsspec URL.
      out: local file; None: ``report.html`` in the run's directory, or ``./<name>-report.html`` for
        a run on an object store.

    Attributes:
      files: the run's directory.
      path: path of the page.

    Raises:
      ConfigError: there is no run.
    """

    def __init__(self, run: str, out: str | None = None):
        self.files = open_run(run)
        if out is None:
            check_private_run(self.files)
        self.path = _report_path(self.files, out)

    def write(self, reload_s: float | None = None, progress: Progress = no_progress) -> RunData:
        """Writes the page, and returns the records that it shows.

        Args:
          reload_s: seconds after which the page reloads itself; None: it does not.

        Raises:
          ConfigError: the file cannot be written.
          RlaxError: the run's file system fails.
        """
        data = read_run(self.files, progress)
        rollouts = read_rollouts(self.files, data, progress)
        curated = curation_section(self.files, data)
        _put(self.path, report_page(data, rollouts, curated, reload_s))
        return data

    def stop_reloading(self) -> None:
        """Replaces the page that was written by one that does not reload itself.

        Raises:
          ConfigError: the file cannot be written.
        """
        _put(self.path, without_reload(self.path.read_text()))


def write_report(run: str, out: str | None = None) -> Path:
    """Writes the page of one run, see ``ReportPage``; returns its path.

    Raises:
      ConfigError: there is no run, or the file cannot be written.
      RlaxError: the run's file system fails.
    """
    page = ReportPage(run, out)
    with progress_bars() as progress:
        page.write(progress=progress)
    return page.path


def write_trace(run: str, out: str) -> Path:
    """Writes who was busy when in a run as Chrome's trace events; returns the path of the file.

    Raises:
      ConfigError: there is no run, or the file cannot be written.
      RlaxError: the run has recorded no spans, or its file system fails.
    """
    files, path = open_run(run), Path(out)
    _put(path, trace_of(files, run_name(files)), "--trace")
    return path


def write_comparison(runs: Sequence[str], out: str | None = None, by: str = "") -> Path:
    """Writes one page that overlays several runs, ``./compare.html`` by default.

    Args:
      by: config key; runs with the same value of it are one line, see ``repeats``. "": each run is.

    Raises:
      ConfigError: there are too many lines; or see ``write_report`` and ``repeats``.
      RlaxError: a run's file system fails.
    """
    if len(runs) > len(COLOURS) and not by:
        reason = f"give at most {len(COLOURS)} runs, because a chart has {len(COLOURS)} colours"
        raise ConfigError("RUN...", f"{len(runs)} runs", reason)
    opened = [open_run(run) for run in runs]
    with progress_bars() as progress:
        data = [read_run(files, progress) for files in opened]
    names = Counter(run.name for run in data)
    for number, (run, files) in enumerate(zip(data, opened, strict=True), start=1):
        if names[run.name] > 1:
            parent = posixpath.basename(posixpath.dirname(files.location().rstrip("/")))
            run.name = f"{number}: {parent}/{run.name}"
    lines = repeats(data, by) if by else data
    if len(lines) > len(COLOURS):
        reason = f"has {len(lines)} values: a chart has {len(COLOURS)} colours"
        raise ConfigError("--by", by, reason)
    path = Path(out or "compare.html")
    _put(path, compare_page(data, lines))
    return path


def _report_path(files: RunFiles, out: str | None) -> Path:
    if out:
        return Path(out)
    if files.is_local:
        return Path(files.location("report.html"))
    return Path(f"{run_name(files)}-report.html")


def _put(path: Path, page: str, option: str = "--out") -> None:
    try:
        RunFiles(str(path.parent)).put(path.name, page.encode())
    except (RlaxError, FileNotFoundError) as error:
        raise ConfigError(option, str(path), str(error)) from error


_LANES = (TRAINER, "controller", "rewards", "weights")  # workers follow
_STEPS = "steps"


def trace_of(files: RunFiles, run: str) -> str:
    """Returns the trace of a run.

    Raises:
      RlaxError: the run has recorded no spans, or they cannot be read.
    """
    try:
        steps = recorded.read(files.get(recorded.NAME))
    except FileNotFoundError:
        reason = "no step has ended yet"
        raise RlaxError(f"{recorded.NAME} does not exist: {reason}") from None
    return _trace_json(steps, run)


def _trace_json(steps: Sequence[StepOfSpans], run: str) -> str:
    """Returns trace events, which Perfetto reads: a thread for the steps, and one for each lane.

    Times are in microseconds since the first event; ``otherData`` has its Unix time.
    """
    spans = [Span(_STEPS, f"step {one.step}", one.began_s, one.ended_s) for one in steps]
    spans += [span for one in steps for span in one.spans]
    begin_s = min((span.began_s for span in spans), default=0.0)
    threads = {
        thread: n for n, thread in enumerate(sorted(set(map(_thread, spans)), key=_place), 1)
    }

    def named(kind: str, thread: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "pid": 1, "tid": thread, "name": kind, "args": arguments}

    events = [named("process_name", 0, name=run)]
    for (lane, activity), thread in threads.items():
        events.append(named("thread_name", thread, name=f"{lane} {activity}".strip()))
        events.append(named("thread_sort_index", thread, sort_index=thread))
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": threads[_thread(span)],
            "name": span.activity,
            "ts": round(1e6 * (span.began_s - begin_s)),
            "dur": round(1e6 * (span.ended_s - span.began_s)),
        }
        for span in spans
    ]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "began_unix_s": begin_s},
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"))


def _thread(span: Span) -> tuple[str, str]:
    """Activities of a worker overlap, which events of one thread must not."""
    return span.lane, span.activity if span.lane.startswith("worker ") else ""


def _place(thread: tuple[str, str]) -> tuple[int, int, tuple[str, str]]:
    lanes = (_STEPS, *_LANES)
    lane = thread[0]
    return lanes.index(lane) if lane in lanes else len(lanes), len(lane), thread
