"""``rlax check --numerics``: the log-prob gaps of trainer and engine, before a run."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.processes.asked import Limit, answers_of
from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.text.terminal import counting
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.tools.commands.numerics.gaps import Bounds, Cell, Verdict, judge

__all__ = ["Numerics", "check_numerics", "document"]

_MODULE = "rlax_plugin.tools.commands.numerics.measuring"
_ROUNDED = 0.5  # nats, where the trainer gives no canary
_EXACT = 1e-3  # a tolerance below it is that of float32


@dataclass(frozen=True, slots=True)
class Numerics:
    """The result of a measurement.

    Attributes:
      table: quantiles of each way to generate, over all depths and by depth.
      bounds: the largest gaps that rounding explains.
      moved: 95th percentile of what the update changed log-probs by, nats.
      refused: the reason why workers would not take the weights; "": they would.
      seconds: time that it took.
    """

    table: list[Cell]
    bounds: Bounds
    verdict: Verdict
    moved: float
    refused: str
    seconds: float

    @property
    def passes(self) -> bool:
        return self.verdict.passes and not self.refused and self.shows_stale

    @property
    def shows_stale(self) -> bool:
        """True if weights of the version before would have made gaps beyond the bounds."""
        return self.moved > 2 * self.bounds.p95

    @property
    def text(self) -> str:
        """Says what is wrong, or that nothing is, and what to do."""
        if self.passes or self.verdict.wrong:
            return self.verdict.text
        if self.refused:
            return "workers would refuse the weights"
        return "the update was too little to show weights or caches of an earlier version"


def check_numerics(config: ResolvedConfig, errors: Console) -> Numerics:
    """Measures a config in a process of its own, which uses this machine's devices.

    Args:
      errors: if it is a terminal, it shows what happens, and for how many seconds.

    Raises:
      ConfigError: the config's trainer or engine cannot be measured.
      DeadlineError: an activity took longer than ``rlax.deadlines.startup_s``.
      RlaxError: the trainer or the engine failed.
    """
    if config.section.trains_on_log:
        path, reason = config.section.logged_samples.path, "has no rollout engine for --numerics"
        raise ConfigError("rlax.logged_samples.path", path, reason)
    limit = Limit(config.section.deadlines.startup_s, "rlax.deadlines.startup_s", each=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rlax-numerics-") as directory:
        asked = {**config.to_process(), "directory": directory}
        with counting(errors) as progress:
            (told,) = answers_of(_MODULE, asked, "importing the parts", limit, progress)
    return _judged(told, time.monotonic() - began_s)


def _judged(told: dict[str, Any], seconds: float) -> Numerics:
    table, tolerance = [Cell(*cell) for cell in told["table"]], told["tolerance"] or _ROUNDED
    bounds = Bounds.of(tolerance, told["temperature"])
    verdict = judge(table, bounds, exact=tolerance < _EXACT)
    return Numerics(table, bounds, verdict, told["moved"], told["refused"], seconds)


def document(found: Numerics) -> dict[str, Any]:
    """Returns everything that is printed, as JSON; null: a number that is not finite."""
    made = dataclasses.asdict(found)
    made["verdict"] = {
        "passes": found.passes,
        "text": found.text,
        "wrong": made["verdict"]["wrong"],
    }
    return _finite(made)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_COLUMNS = 8  # of depths: the deepest ones, and those of all others together


def show(console: Console, found: Numerics) -> None:
    """Prints the table, the verdict and what to do."""
    bounds = found.bounds
    console.print()
    console.print(Text("|trainer - engine| of log-probs, nats", "bold"))
    console.print(_table(found))
    text = (
        f"bounds: p95 {_number(bounds.p95)}, max {_number(bounds.max)}; the update moved "
        f"log-probs by {_number(found.moved)} (p95); {in_seconds(found.seconds)}"
    )
    console.print(Text(f"  {text}"), soft_wrap=True)
    if not found.shows_stale:
        text = "too little to show weights or caches of an earlier version: raise learning_rate"
        console.print(Text(f"  warning: the update was {text}", "yellow"), soft_wrap=True)
    if found.refused:
        text = f"workers would refuse the weights: {one_line(found.refused, 300)}"
        console.print(Text(f"  {text}", "red"), soft_wrap=True)
    console.print()
    style, word = ("green", "Passes") if found.passes else ("red", "Fails")
    console.print(Text(f"{word}: {found.text}.", style), soft_wrap=True)


def _table(found: Numerics) -> Table:
    depths = sorted({cell.depth for cell in found.table if cell.depth})
    first, *rest = depths[-_COLUMNS:]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("  p95 by depth from", no_wrap=True)
    for name in ("tokens", "p50", "p95", "max"):
        table.add_column(name, justify="right")
    for depth in (depths[0], *rest):
        table.add_column(f"{depth:,}", justify="right")
    for way in dict.fromkeys(cell.name for cell in found.table):
        own = {cell.depth: cell for cell in found.table if cell.name == way}
        whole = own[0]
        cells = [f"{whole.tokens:,}", *(_number(n) for n in (whole.p50, whole.p95, whole.max))]
        shallow = [cell for depth, cell in own.items() if 0 < depth <= first]
        shown = [shallow, *([own[depth]] if depth in own else [] for depth in rest)]
        table.add_row(Text(f"  {way}"), *cells, *(_cell(found, one) for one in shown))
    return table


def _cell(found: Numerics, cells: list[Cell]) -> Text:
    """The largest p95 of some cells; red if one of them is wrong."""
    if not cells:
        return Text("-")
    wrong = any(cell in found.verdict.wrong for cell in cells)
    return Text(_number(max(cell.p95 for cell in cells)) + "!" * wrong, "red" if wrong else "")


def _number(value: float) -> str:
    """In few characters: 2e-6."""
    if not value:
        return "0"
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
