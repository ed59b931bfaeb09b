"""Shows an audit on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit.auditor import audit
from rlax_plugin.tools.commands.audit.report import Figures, Report, Violation

_WARNINGS_SHOWN = 3


def audit_with_progress(files: RunFiles) -> Report:
    """Runs ``audit`` with a progress bar on standard error, if that is a terminal."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("segments", total=None)
        return audit(files, lambda done, of: bar.update(task, completed=done, total=of))


def print_report(console: Console, report: Report) -> None:
    """Prints the figures, then the result."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold", style="dim")
    for name, value, remark in _rows(report.figures):
        table.add_row(name, f"{value:,}", remark)
    console.print(table)
    for warning in report.warnings[:_WARNINGS_SHOWN]:
        console.print(Text.assemble(("warning: ", "bold yellow"), warning), soft_wrap=True)
    if (more := len(report.warnings) - _WARNINGS_SHOWN) > 0:
        console.print(f"and {more} more warnings")
    if report.violation is None:
        said = "every group is accounted for, none trained twice, none too stale"
        console.print(Text.assemble(("clean: ", "bold green"), said), soft_wrap=True)
        return
    console.print(_verdict(report.violation), soft_wrap=True)
    if (total := report.violations.total()) > 1:
        console.print(f"{total} violations in total: {_counts(report.violations)}", soft_wrap=True)


def _verdict(found: Violation) -> Text:
    places = (("segment", found.segment), ("step", found.step), ("group", found.group))
    where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
    return Text.assemble(
        ("violation: ", "bold red"), (found.rule, "bold"), f" at {where}: " if where else ": ",
        found.message,
    )  # fmt: skip


def _rows(figures: Figures) -> list[tuple[str, int, str]]:
    return [
        ("groups issued", figures.issued, ""),
        ("  trained", figures.trained, f"in {figures.steps:,} steps"),
        ("  rejected", figures.rejected.total(), _counts(figures.rejected)),
        ("  dropped", figures.dropped.total(), _counts(figures.dropped)),
        ("  ready", figures.ready, "accepted, not yet trained"),
        ("  in flight", figures.open, "issued, not yet scored"),
        ("samples trained", figures.samples, f"{figures.tokens:,} tokens"),
        ("largest staleness", figures.max_staleness, "versions"),
        ("groups issued again", figures.reissued, "to another worker, or after a restart"),
        ("restarts", figures.restarts, ""),
        *(
            [("turns discarded", figures.turns_discarded, "an environment gave something else")]
            if figures.turns_discarded
            else []
        ),
        ("journal segments", figures.segments, ""),
    ]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
