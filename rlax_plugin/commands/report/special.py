"""Charts that do not simply show metrics over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlax_plugin.commands.report.evaluations import SOLVED, Measured
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.series import (
    COLOURS,
    NEUTRAL,
    VERSION,
    Chart,
    column,
    cut_off,
    layout,
    legend,
    lines_of,
    mark_changes,
    numbers_of,
    points_of,
    style,
    thinned,
)
from rlax_plugin.commands.report.x_axes import STEP
from rlax_plugin.metrics import names as metric_names

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


def rejected_share(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of the share of scored groups that filters rejected, per run."""
    shares = [
        _ratio(100 * column(run, "curation/groups_rejected"), column(run, "curation/groups_scored"))
        for run in runs
    ]
    y = "rejected groups, % of those scored"
    return _chart_of("rejected", "Groups rejected by the filters", y, runs, [("rejected", shares)])


def _ratio(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Returns the quotient; NaN for a zero divisor."""
    return np.divide(values, over, out=np.full_like(values, np.nan), where=over > 0)


def _chart_of(
    key: str,
    title: str,
    unit: str,
    runs: Sequence[RunData],
    found: Sequence[tuple[str, Sequence[np.ndarray]]],
) -> Chart | None:
    figure = go.Figure(lines_of(runs, found), layout(STEP, unit))
    figure.update_yaxes(rangemode="tozero")
    numbers = numbers_of(runs, found)
    told = cut_off(figure, points_of(runs, found), from_zero=True, runs=numbers)
    return Chart(key, title, told, figure) if figure.data else None


def weight_versions(run: RunData) -> Chart | None:
    """Returns a chart of published weight versions, and those that each worker generated with."""
    steps = run.history.steps if run.history else {}
    found = [(step, at) for step, at in steps.items() if at.newest is not None]
    if not found:
        return None
    workers = sorted({worker for _, at in found for worker in at.generated_with})
    x = [step for step, _ in found]
    newest = np.array([at.newest for _, at in found], np.float64)
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    figure.update_layout(layout(STEP, ""))
    xs, published = thinned(x), {"color": NEUTRAL, "width": 2, "shape": "hv"}
    figure.add_scatter(x=xs, y=thinned(newest), name="published", line=published, row=1, col=1)
    for number, worker in enumerate(workers):
        # A worker that has generated nothing yet has no version.
        pulled = np.array([at.generated_with.get(worker, np.nan) for _, at in found], np.float64)
        look = {"color": COLOURS[number % len(COLOURS)], "width": 2, "shape": "hv"}
        common = {"x": xs, "line": look, "mode": "lines", "legendgroup": worker}
        figure.add_scatter(y=thinned(pulled), name=worker, row=1, col=1, **common)
        behind = thinned(newest - pulled)
        figure.add_scatter(y=behind, name=worker, showlegend=False, row=2, col=1, **common)
    figure.update_yaxes(title_text="weight version", row=1, col=1)
    figure.update_yaxes(title_text="versions behind", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="", row=1, col=1)
    figure.update_xaxes(title_text=STEP, row=2, col=1)
    return Chart(
        f"weights-{run.name}",
        "Weights published and pulled",
        "Above: the newest version, and the newest version that each worker has used. Below: how "
        "many versions a worker is behind when a batch is committed. A worker that evaluates does "
        "not generate for training.",
        figure,
        of=run.name,
    )


def phases(run: RunData) -> Chart | None:
    """Returns a stacked chart of the training loop's time by phase."""
    spent = _spent(run)
    if spent is None:
        return None
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
    whole = thinned(np.sum([seconds for _, seconds in spent], axis=0))
    told = cut_off(figure, [(thinned(run.steps), whole)], from_zero=True)
    mark_changes(figure, run)
    caption = (
        "Time of the training loop. It waits if generating and scoring take longer than training."
    )
    return Chart("phases", "Time per phase", f"{caption} {told}".strip(), figure)


def _spent(run: RunData) -> list[tuple[str, np.ndarray]] | None:
    """Returns (phase, seconds per step); the last is the rest of the step's time."""
    whole = column(run, "time/step_s")
    if not np.isfinite(whole).any():
        return None
    spent = [(label, np.nan_to_num(column(run, metric))) for metric, label in _PHASES]
    rest = np.maximum(np.nan_to_num(whole) - sum(seconds for _, seconds in spent), 0.0)
    return [*spent, ("checkpoints and the rest", rest)]


def mean_phases(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of mean seconds per step and phase, with a stacked bar per run."""
    figure = go.Figure(layout=layout("seconds per step, mean", "", barmode="stack"))
    figure.update_layout(hovermode="closest")
    found = [(run, spent) for run in runs if (spent := _spent(run))]
    for run, spent in reversed(found):  # bars grow upwards
        for index, (label, seconds) in enumerate(spent):
            figure.add_bar(
                x=[float(seconds.mean())],
                y=[run.name],
                name=label,
                orientation="h",
                marker={"color": COLOURS[index]},
                legendgroup=label,
                showlegend=run is found[-1][0],
                hovertemplate=f"{label}: %{{x:.3f}} s<extra></extra>",
            )
    figure.update_yaxes(automargin=True, type="category")
    return Chart("phases", "Time per phase", "", figure) if figure.data else None


def throughput(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of tokens generated and trained per second of a step."""
    found = [
        (label, [_ratio(column(run, metric), column(run, "time/step_s")) for run in runs])
        for metric, label in (("rollout/tokens", "generated"), ("train/tokens", "trained"))
    ]
    return _chart_of("throughput", "Throughput", "tokens per second", runs, found)


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
