"""Charts of the metrics of machines: one for each figure, with a line for each process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.series import (
    COLOURS,
    Chart,
    column,
    layout,
    lines_of,
    mark_changes,
)
from rlax_plugin.commands.report.x_axes import STEP
from rlax_plugin.metrics import names as metric_names

PREFIX = "machine/"
"""Metrics are named ``machine/<process>_<figure>``; no process has an underscore in its name."""

_EXTREMES = (("largest", np.fmax), ("smallest", np.fmin))


def machine_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Returns a chart of each figure, ordered by name.

    If there are more processes than colours, or several runs, it has the largest and the smallest
    value of all processes instead of a line for each.
    """
    names = sorted({name for run in runs for name in run.metrics if name.startswith(PREFIX)})
    figures: dict[str, list[str]] = {}
    for name in names:
        figures.setdefault(name.removeprefix(PREFIX).partition("_")[2], []).append(name)
    return [chart for figure, found in figures.items() if (chart := _chart(runs, figure, found))]


def _chart(runs: Sequence[RunData], figure: str, names: Sequence[str]) -> Chart | None:
    row = metric_names.find(names[0])
    unit, caption = (row.unit, row.meaning) if row else (figure.replace("_", " "), "")
    lines: list[tuple[str, list[np.ndarray]]] = [
        (name.removeprefix(PREFIX).partition("_")[0], [column(run, name) for run in runs])
        for name in names
    ]
    if len(names) > len(COLOURS) or (len(runs) > 1 and len(names) > 1):
        of_runs = [np.array([values[number] for _, values in lines]) for number in range(len(runs))]
        lines = [(name, [pick.reduce(one) for one in of_runs]) for name, pick in _EXTREMES]
        caption = f"{caption} Largest and smallest of {len(names)} processes.".strip()
    made = layout(STEP, unit)
    traces = lines_of(runs, lines)
    if not traces:
        return None
    drawn = go.Figure(traces, made)
    if len(runs) == 1:
        mark_changes(drawn, runs[0])
    return Chart(f"machine-{figure}", f"{PREFIX}{figure}", caption, drawn)
