"""The dashboard: a live display on a terminal, and occasional lines elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rlax_plugin.rollout.fleet.fleet import Worker
from rlax_plugin.run.display.waiting import Waiting
from rlax_plugin.run.evaluation.measures import is_score, label
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.evaluation.statistics import Estimate

_LEVELS = " ▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 40) -> str:
    """Returns the last values as a row of bars, scaled between their minimum and maximum."""
    values = values[-width:]
    if not values:
        return ""
    low, span = min(values), max(values) - min(values) or 1.0
    return "".join(_LEVELS[1 + int((v - low) / span * (len(_LEVELS) - 2))] for v in values)


class Dashboard:
    """Shows phase, step, reward, staleness, speed, workers, version and time left.

    Args:
      console: the output; a terminal gets a live display, anything else plain lines.
      total_steps: the run's last step.
      every_s: seconds between plain lines.
      clock: returns monotonic seconds, by which plain lines are timed.

    Attributes:
      workers: the live workers, read at each refresh.
      waiting: the phase that the run waits for while it does not train.
    """

    def __init__(
        self,
        console: Console,
        total_steps: int,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        say = None if console.is_terminal else self.message
        self.waiting = Waiting(say, clock=clock)
        self._console, self._clock = console, clock
        self.workers: Mapping[str, Worker] = {}
        self._total_steps, self._every_s = total_steps, every_s
        self._phase = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._phase.add_task("training", total=total_steps)
        self._reported = ""  # the phase of the trainer that is shown
        self._rewards: deque[float] = deque(maxlen=400)
        self._latest: Mapping[str, float] = {}
        self._version = -1
        self._step = 0
        self._step_s: deque[float] = deque(maxlen=50)
        self._last_line_s = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> Dashboard:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=2
            )
            self._live.start()
        self.waiting.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.waiting.__exit__()
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Refreshes the live display at once, if there is one."""
        if self._live is not None:
            self._live.refresh()

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        """Shows the progress of a phase of the trainer, with a note such as its latest figure."""
        if phase != self._reported:
            self._reported = phase
            self.waiting.begin(phase, ends=f"it ends after at most {of} steps")
        self.waiting.progress(f"step {done} of at most {of} {note}".rstrip())

    def reading(self, what: str, rows: int) -> None:
        """Shows the number of rows of a dataset that were read."""
        self.waiting.progress(f"{what}, {rows:,} rows")

    def evaluated(self, done: int, of: int) -> None:
        """Shows the number of problems that were generated and scored, of all."""
        self.waiting.progress(f"{done:,} of {of:,} problems")

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def estimates(self, title: str, found: Evaluated) -> None:
        for name, measures in found.sets.items():
            parts = [f"{label(m)} {shown(e)}" for m, e in measures.items() if is_score(m)]
            which = f" ({name})" if len(found.sets) > 1 else ""
            parts += [reward_errors(found, name)] if name in found.failures else []
            self.message(f"{title}{which}: " + "  ".join(parts))

    def step(self, step: int, metrics: Mapping[str, float], version: int) -> None:
        """Shows a finished step."""
        if self._latest:  # the first step's time is no step's: it began with no step's end
            self._step_s.append(metrics["time/step_s"])
        self._step, self._latest, self._version = step, metrics, version
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])
        self.waiting.end()
        self._phase.update(self._task, completed=step)
        now = self._clock()
        last = step >= self._total_steps
        if self._live is None and (now - self._last_line_s > self._every_s or last):
            self._last_line_s = now
            self.message(self._line())

    def _left_s(self) -> float:
        # The median: one step that compiled or waited for a worker says nothing of the rest.
        ordered = sorted(self._step_s)
        return (self._total_steps - self._step) * ordered[len(ordered) // 2]

    def _reward(self) -> str:
        return f"{self._rewards[-1]:.3f}" if self._rewards else "-"  # of the last step that scored

    def _line(self) -> str:
        m = self._latest
        speed = left = ""
        if self._step_s:
            speed = (
                f"{1e3 * m['time/step_s']:.0f} ms/step  "
                f"{m['rollout/tokens'] / max(m['time/step_s'], 1e-9):,.0f} tok/s  "
            )
            left = f"  left {self._left_s():.0f} s"
        gap_nats = m.get("logprob_gap/p95", math.nan)
        gap = "-" if math.isnan(gap_nats) else f"{gap_nats:.1e}"  # without an on-policy token
        return (
            f"step {self._step}/{self._total_steps}  reward {self._reward()}  "
            f"staleness {m['staleness/max']:.0f}  gap p95 {gap}  {speed}"
            f"workers {m['rollout/workers']:.0f}  version {self._version}{left}"
        )

    def _render(self) -> RenderableType:
        waits = self.waiting.line()
        parts: list[RenderableType] = [Text(waits) if waits else self._phase]
        if self._latest:
            parts.append(Text(self._line()))
            parts.append(Text(f"reward      {sparkline(list(self._rewards), 60)}"))
        table = Table(box=None, pad_edge=False)
        for column in ("worker", "version", "samples", "slots", "state"):
            table.add_column(column, style="dim")
        for w in list(self.workers.values()):
            state = "draining" if w.draining else "ready" if w.ready else "loading weights"
            if w.rests:
                state = "rests: it was lost again and again"
            if w.keep >= 0:
                state = f"evaluating version {w.keep}"
            table.add_row(w.name, str(w.version), str(w.assigned), str(w.slots), state)
        parts.append(table)
        return Panel(Group(*parts), title="rlax", title_align="left")


def shown(estimate: Estimate) -> str:
    """Formats an estimate: its value and interval."""
    low, high = estimate.ci95
    return f"{estimate.value:.3f} [{low:.3f}, {high:.3f}]"


def reward_errors(found: Evaluated, name: str) -> str:
    """Returns the share of failed rewards of a set, with the reason of one of them."""
    share = found.sets[name]["reward_errors"].value
    return f"reward errors {100 * share:.1f} %, such as {found.failures[name]}"


def before_after_table(before: Evaluated, after: Evaluated) -> RenderableType:
    """Returns the table at the end of a run: shares of solved problems before and after."""
    table = Table(title="held-out evaluation")
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    sizes = []
    for name, measures in before.sets.items():
        others = after.sets.get(name, {})
        scores = [m for m in measures if is_score(m) and m in others]
        for measure in scores:
            b, a = measures[measure], others[measure]
            which = f"{name}  " if len(before.sets) > 1 else ""
            table.add_row(
                f"{which}{label(measure)}",
                shown(b),
                shown(a),
                f"{100 * (a.value - b.value):+.1f} points",
                end_section=measure == scores[-1],
            )
        sizes += [f"{measures[m].problems} problems x {measures[m].n} samples" for m in scores[:1]]
    table.caption = f"{', '.join(dict.fromkeys(sizes))}, 95 % bootstrap intervals"
    failures = [
        f"{name}, {when}: {reward_errors(found, name)}"
        for when, found in (("before", before), ("after", after))
        for name in found.failures
    ]
    if not failures:
        return table
    return Group(table, *map(Text, failures))
