"""``rlax report --watch``: writes the page of a run again whenever the run has written more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.run.metrics import file
from rlax_plugin.run.start.holder import holder, holder_has_ended
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.report.figures import duration, state
from rlax_plugin.tools.commands.report.run import RunData, local_state
from rlax_plugin.tools.commands.report.write import ReportPage

_SHARE = 10  # at most one such part of the time goes into writing the page

_GROWING = (CONFIG, file.NAME, "summary.json")
_FOLDERS = ("evaluation", "controller")

Say = Callable[[str], None]


def watch_report(run: str, out: str | None, every_s: float, console: Console) -> Path:
    """Writes the page of a run now, and again after changes, until the run has ended.

    Args:
      run, out: see ``ReportPage``.
      every_s: seconds between two looks at the run's files; more if writing the page takes long.
      console: shows what was written, and when.

    Returns:
      The path of the page, which does not reload itself any more.

    Raises:
      ConfigError: there is no run, or the page cannot be written.
      RlaxError: the run's file system fails at the first attempt. Later failures are shown, and
        tried again.
      KeyboardInterrupt: the user ended it; the page does not reload itself any more.
    """
    page = ReportPage(run, out)
    status = console.status("reading the run") if console.is_terminal else nullcontext()
    with status as shown:

        def say(line: str) -> None:
            if shown is None:
                console.print(line, soft_wrap=True, markup=False, highlight=False)
            else:
                shown.update(escape(f"{line}  (Ctrl-C ends)"))

        try:
            _watch(page, every_s, say)
        except KeyboardInterrupt:
            if page.path.exists():
                page.stop_reloading()
            raise
    return page.path


def _watch(page: ReportPage, every_s: float, say: Say) -> None:
    seen: object = None
    written: RunData | None = None
    pause_s = every_s
    while True:
        try:
            found = seen_now(page.files)
            if found != seen or written is None:
                began_s = time.perf_counter()
                written = page.write(every_s)
                took_s = time.perf_counter() - began_s
                seen, pause_s = found, max(every_s, _SHARE * took_s)
                say(f"{_line(page.path, written)}, written at {_now()} in {duration(took_s)}")
            # Looked at before the files, which a process that has ended does not change any more.
            if has_ended(page.files, written) and seen_now(page.files) == seen:
                if written.training:  # it says so on the page
                    written = page.write()
                else:
                    page.stop_reloading()
                say(f"{_line(page.path, written)}: the run has ended ({state(written)})")
                return
        except ConfigError:
            raise
        except RlaxError as error:
            if written is None:
                raise
            say(f"{_now()}: {error}; trying again in {duration(pause_s)}")
        threading.Event().wait(pause_s)


def _line(path: Path, run: RunData) -> str:
    steps = f"step {int(run.steps[-1]):,}" if run.steps else "no step yet"
    return f"{path}: {steps}"


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def seen_now(files: RunFiles) -> object:
    """Returns something that differs after a run has written more; it reads no file.

    Raises:
      RlaxError: the file system fails.
    """
    sizes = files.sizes("")
    own = tuple(sizes.get(name) for name in _GROWING)
    below = tuple(tuple(files.sizes(name).items()) for name in _FOLDERS)
    return own, below, journal.last_number(files)


def has_ended(files: RunFiles, run: RunData) -> bool:
    """True if no process will write more: the run is complete, was stopped, or was killed.

    A run on another machine that was killed cannot be told from one that trains.
    """
    if holder(local_state(files, run)) is not None:
        return False
    if run.summary.get("complete") and run.summary.get("steps", 0) >= max(run.steps, default=0):
        return True
    return holder_has_ended(local_state(files, run))
