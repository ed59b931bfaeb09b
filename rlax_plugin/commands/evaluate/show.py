"""Formats measures as a table."""

from __future__ import annotations

from rich.table import Table

from rlax_plugin.evaluation.measures import label
from rlax_plugin.evaluation.result import Evaluated


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
