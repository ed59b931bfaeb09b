"""Shows the table of log-prob gaps, and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.tools.commands.numerics import Numerics
from rlax_plugin.tools.commands.numerics.gaps import Cell

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
