"""The progress of a run, read from its records, and its display in notebooks and terminals."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.files.run_files import ordinary
from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.text.terminal import HarmlessConsole
from rlax_plugin.run.display.dashboard import sparkline

_PLAIN_S = 10.0  # between lines where there is no terminal
_KEPT = 400  # rewards of the last steps


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
      name: name of the run.
      status: see ``Run.status``.
      step: last finished step; 0: none.
      steps: step with which the run is complete.
      rewards: mean rewards of the last steps, in order.
      step_s: median time of a step, in seconds; NaN if it is not known.
      note: last line of the run's output; empty if it is not known.
    """

    name: str
    status: str
    step: int
    steps: int
    rewards: tuple[float, ...] = ()
    step_s: float = math.nan
    note: str = ""

    def line(self) -> str:
        """Returns the progress in one line."""
        text = f"{self.name}: {self.status}, step {self.step} of {self.steps}"
        if self.rewards:
            text += f", reward {self.rewards[-1]:.3f}"
        if self.status == "running" and math.isfinite(self.step_s) and self.step < self.steps:
            text += f", {in_seconds(self.step_s * (self.steps - self.step))} left"
        return text

    def panel(self) -> Panel:
        """Returns the progress as rich shows it in terminals and in notebooks."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=max(self.steps, 1), completed=self.step, width=40))
        parts: list[Any] = [Text(self.line()), bar]
        if len(self.rewards) > 1:
            parts.append(Text(f"reward {sparkline(list(self.rewards), 60)}"))
        if self.note:
            parts.append(Text(harmless(self.note), style="dim", overflow="ellipsis", no_wrap=True))
        return Panel(Group(*parts), title="rlax", title_align="left")


class MetricsReader:
    """Reads the steps that a run adds to its local ``metrics.jsonl``, and no line twice."""

    def __init__(self, path: Path):
        self._path = path
        self._inode, self._offset = 0, 0
        self.step = 0
        self.rewards: deque[float] = deque(maxlen=_KEPT)
        self._step_s: deque[float] = deque(maxlen=50)

    @property
    def step_s(self) -> float:
        """The median time of the last steps, in seconds; NaN if there are none."""
        ordered = sorted(self._step_s)
        return ordered[len(ordered) // 2] if ordered else math.nan

    def read(self) -> None:
        """Reads what has been written since the last call."""
        try:
            with open(self._path, "rb", opener=ordinary) as file:
                self._read(file)
        except FileNotFoundError:
            return

    def _read(self, file: Any) -> None:
        inode, size = self._path.stat().st_ino, self._path.stat().st_size
        if inode != self._inode or size < self._offset:  # a resumed run has cut it
            self._inode, self._offset, self.step = inode, 0, 0
            self.rewards.clear()
            self._step_s.clear()
        file.seek(self._offset)
        whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            # A damaged line is none, as in run/metrics/file.py; a step after it has its own.
            with suppress(ValueError, LookupError, TypeError):
                self._add(json.loads(line))

    def _add(self, metrics: dict[str, float]) -> None:
        self.step = int(metrics["step"])
        if "reward/mean" in metrics:
            self.rewards.append(metrics["reward/mean"])
        if "time/step_s" in metrics:
            self._step_s.append(metrics["time/step_s"])


class Display(Protocol):
    """Shows progress, again and again in one place if it can."""

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


def display() -> Display:
    """Returns a display for where this process runs: a notebook, a terminal, or neither."""
    if (shown := _notebook_display()) is not None:
        return _Notebook(shown)
    console = HarmlessConsole(file=sys.stdout)
    return _Terminal(console) if console.is_terminal else _Lines(print)


def show_once(result: RenderableType) -> None:
    """Shows a table or a sentence where ``display`` shows progress, to stay there."""
    if (shown := _notebook_display()) is not None:
        shown(Panel(result))
    else:
        HarmlessConsole(file=sys.stdout).print(result)


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    return _notebook_display() is not None


def _notebook_display() -> Callable[..., Any] | None:
    """Returns IPython's function ``display`` in the kernel of a notebook; otherwise None."""
    library = sys.modules.get("IPython")
    shell = library.get_ipython() if library is not None else None
    shown = sys.modules.get("IPython.display")
    return shown.display if hasattr(shell, "kernel") and shown is not None else None


class _Notebook:
    def __init__(self, show: Callable[..., Any]):
        self._show, self._handle = show, None

    def show(self, progress: Progress) -> None:
        if self._handle is None:
            self._handle = self._show(progress.panel(), display_id=True)
        else:
            self._handle.update(progress.panel())

    def close(self) -> None:
        """Leaves the last state."""


class _Terminal:
    def __init__(self, console: HarmlessConsole):
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, progress: Progress) -> None:
        self._live.update(progress.panel(), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Lines:
    def __init__(self, put: Callable[[str], object], clock: Callable[[], float] = time.monotonic):
        self._put, self._clock = put, clock
        self._last, self._last_s = "", -math.inf

    def show(self, progress: Progress) -> None:
        line, now = progress.line(), self._clock()
        over = progress.status not in ("starting", "running")
        if line != self._last and (over or now - self._last_s > _PLAIN_S):
            self._last, self._last_s = line, now
            self._put(line)

    def close(self) -> None:
        """Has nothing to close."""
