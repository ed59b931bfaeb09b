"""Charts that do not simply show metrics over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.tools.commands.report.evaluations import SOLVED, Measured
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import (
    COLOURS,
    VERSION,
    Chart,
    column,
    cut_off,
    layout,
    legend,
    lines_of,
    mark_changes,
    plotted,
    style,
    thinned,
)
from rlax_plugin.tools.commands.report.x_axes import STEP

_PHASES = (
    ("time/wait_s", "waiting for the batch"),
    ("time/train_s", "training step"),
    ("time/publish_on_loop_s", "copying weights"),
)


def evaluations(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Yields charts per held-out set: figures with intervals over the measured weight versions."""
    several = len(runs) > 1
    kinds = dict.fromkeys((m.held_out, m.family) for run in runs for m in run.measured)
    for held_out, family in sorted(kinds, key=lambda kind: (kind[0], kind[1] != SOLVED, kind[1])):
        of_runs = [
            [m for m in run.measured if (m.held_out, m.family) == (held_out, family)]
            for run in runs
        ]
        labels = list(dict.fromkeys(m.label for found in of_runs for m in found))
        percent = family in (SOLVED, "fraction")
        what = family if family == SOLVED else ", ".join(labels)
        figure = go.Figure(layout=layout(VERSION, f"{what}, {'%' if percent else family}"))
        figure.add_traces(legend(labels, several))
        for index, label in enumerate(labels):
            for number, run in enumerate(runs):
                found = [m for m in of_runs[number] if m.label == label]
                if found:
                    name = f"{run.name}: {label}" if several else label
                    look = style(number, index, several)
                    figure.add_trace(_with_intervals(found, name, label, look, percent, number))
        if family == SOLVED:
            figure.update_yaxes(rangemode="tozero")
        caption = "Bars are 95 % intervals over the choice of problems."
        title = f"Held out, {held_out}: {what}"
        yield Chart(f"evaluation-{held_out}-{family}", title, caption, figure)


def _with_intervals(
    found: Sequence[Measured],
    name: str,
    group: str,
    look: dict[str, str],
    percent: bool,
    run: int,
) -> go.Scatter:
    scale, unit = (100, " %") if percent else (1, "")
    value = scale * np.array([m.estimate.value for m in found])
    low, high = scale * np.array([m.estimate.ci95 for m in found]).T
    return go.Scatter(
        x=[m.version for m in found],
        y=value,
        name=name,
        legendgroup=group,
        showlegend=False,
        mode="lines+markers",
        error_y={"array": high - value, "arrayminus": value - low, "thickness": 1.2},
        line=look,
        meta={"run": run},
        customdata=np.stack([low, high], axis=1),
        hovertemplate=f"%{{y:.2f}}{unit} [%{{customdata[0]:.2f}}, %{{customdata[1]:.2f}}]",
    )


def phases(run: RunData) -> Chart | None:
    """Returns a stacked chart of the training loop's time by phase."""
    whole = column(run, "time/step_s")
    if not np.isfinite(whole).any():
        return None
    spent = [(label, np.nan_to_num(column(run, metric))) for metric, label in _PHASES]
    rest = np.maximum(np.nan_to_num(whole) - sum(seconds for _, seconds in spent), 0.0)
    spent.append(("checkpoints and the rest", rest))
    figure = go.Figure(layout=layout(STEP, "seconds per step"))
    for index, (label, seconds) in enumerate(spent):
        figure.add_scatter(
            x=thinned(run.steps),
            y=thinned(seconds),
            name=label,
            stackgroup="time",
            mode="lines",
            line={"width": 0.5, "color": COLOURS[index]},
            hovertemplate="%{y:.3f} s",
        )
    told = cut_off(figure, [thinned(whole)], from_zero=True)
    mark_changes(figure, run)
    caption = (
        "Time of the training loop. It waits if generating and scoring take longer than training."
    )
    return Chart("phases", "Time per phase", f"{caption} {told}".strip(), figure)


def throughput(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of tokens generated and trained per second of a step."""
    found = [
        (label, [_ratio(column(run, metric), column(run, "time/step_s")) for run in runs])
        for metric, label in (("rollout/tokens", "generated"), ("train/tokens", "trained"))
    ]
    figure = go.Figure(lines_of(runs, found), layout(STEP, "tokens per second"))
    figure.update_yaxes(rangemode="tozero")
    told = cut_off(figure, plotted(found), from_zero=True)
    return Chart("throughput", "Throughput", told, figure) if figure.data else None


def _ratio(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Returns the quotient; NaN for a zero divisor."""
    return np.divide(values, over, out=np.full_like(values, np.nan), where=over > 0)
