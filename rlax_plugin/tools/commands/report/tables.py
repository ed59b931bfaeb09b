"""The tables of the page: evaluations before and after, and runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.config.identity import leaves
from rlax_plugin.tools.commands.report.evaluations import Measured
from rlax_plugin.tools.commands.report.figures import figures, state, time_of_steps
from rlax_plugin.tools.commands.report.run import RunData

_MISSING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the held-out evaluation, before and after training."""

    held_out: str
    label: str
    problems: int
    before: str
    after: str
    change: str


def changes(run: RunData) -> list[Change]:
    """Returns the held-out evaluation before and after training; a dash if one is missing."""
    before, after = (
        {(m.held_out, m.measure): m for m in run.measured if m.moment == moment}
        for moment in ("before", "after")
    )
    known = before | after
    keys = sorted(known, key=lambda key: (key[0], not known[key].solved, key[1]))
    return [_change(before.get(key), after.get(key)) for key in keys]


def _change(before: Measured | None, after: Measured | None) -> Change:
    known = after or before
    assert known is not None
    change = _MISSING
    if before and after:
        difference = after.estimate.value - before.estimate.value
        change = f"{100 * difference:+.1f} points" if known.solved else f"{difference:+.3f}"
    return Change(
        known.held_out,
        known.label,
        known.estimate.problems,
        _estimate(before),
        _estimate(after),
        change,
    )


def _estimate(measured: Measured | None) -> str:
    if measured is None:
        return _MISSING
    low, high = measured.estimate.ci95
    return f"{measured.estimate.value:.3f} [{low:.3f}, {high:.3f}]"


def side_by_side(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Returns (name, a value per run) for every figure that any run has.

    Runs over the same problems are compared with the first one, paired by problem.
    """
    columns: list[dict[str, str]] = []
    for run in runs:
        column = {"state": state(run)}
        for figure in figures(run):
            # The wall time of a restarted run is another quantity.
            if figure.name == "wall time":
                column["time of all steps"] = time_of_steps(run)
            else:
                column[figure.name] = figure.value
        column |= {f"{c.label} on {c.held_out}": f"{c.before} → {c.after}" for c in changes(run)}
        columns.append(column)
    for run, column in zip(runs[1:], columns[1:], strict=True):
        for name, answered in runs[0].answered.items():
            if name in run.answered:
                what = f"pass@1 on {name}, change from {runs[0].name}"
                column[what] = answered.change_to(run.answered[name])
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [(name, [column.get(name, _MISSING) for column in columns]) for name in names]


def config_differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Returns (dotted key, a value per run) for every config key that differs between runs."""
    columns = [{key: str(value) for key, value in leaves(run.config)} for run in runs]
    keys = sorted({key for column in columns for key in column})
    rows = [(key, [column.get(key, _MISSING) for column in columns]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
