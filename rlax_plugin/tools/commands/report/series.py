"""Charts of metrics over training steps: their lines, colours, legends and y axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.tools.commands.report.figures import Figure
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.x_axes import STEP

# Told apart on white and on black, and by most who see colours differently.
COLOURS = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#ec4899", "#0ea5e9", "#84cc16",
)  # fmt: skip
NEUTRAL = "#8a93a3"
DASHES = ("solid", "dot", "dash", "dashdot")
VERSION = "weight version"
"""Title of the x axis of charts over versions; the step of its number makes a version."""
RANGES = "Lines are means of runs, areas their range."
MAX_POINTS = 1000  # of a line; beyond, each point is the mean of as many steps as needed
_SMOOTHED_FROM = 30  # points; fewer can be read as they are


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel of the page.

    Attributes:
      key: an HTML id, unique on the page.
      caption: a sentence that explains the chart; may be "".
    """

    key: str
    title: str
    caption: str
    figure: go.Figure


@dataclass(frozen=True, slots=True)
class Lines:
    """A chart of metrics over steps.

    Attributes:
      unit: title of the y axis.
      metrics: (metric, label) pairs.
      scale: values are multiplied by it, e.g. 100 for percent.
      counts: True if a step without a value has counted none.
    """

    key: str
    title: str
    unit: str
    metrics: tuple[tuple[str, str], ...]
    caption: str = ""
    log: bool = False
    scale: float = 1.0
    counts: bool = False


def layout(x: str, y: str, **more: object) -> go.Layout:
    """Returns a layout with axis titles and common settings; the page adds its theme's colours.

    The page can move a chart over steps to another x axis; ``meta`` says that it is one.
    """
    common: dict[str, object] = {
        "meta": {"steps": x in (STEP, VERSION)},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
        "template": "none",
    }
    return go.Layout(**common | more)


def thinned(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns at most ``MAX_POINTS`` means of neighbours; NaN if all of them are NaN.

    Fewer values are returned as they are, float64; means are float32.
    """
    values = np.asarray(values, np.float64)
    per_point = -(-len(values) // MAX_POINTS)
    if per_point <= 1:
        return values
    padded = np.pad(values, (0, -len(values) % per_point), constant_values=np.nan)
    return _mean(padded.reshape(-1, per_point)).astype(np.float32)  # half of the page's bytes


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Returns the running mean of ``window`` points, of fewer at the ends; NaN stays NaN.

    Args:
      window: an odd number of points.
    """
    half = window // 2
    padded = np.pad(values, half, constant_values=np.nan)
    means = _mean(np.lib.stride_tricks.sliding_window_view(padded, window))
    return np.where(np.isnan(values), np.nan, means)


def _mean(rows: np.ndarray) -> np.ndarray:
    counts = np.sum(~np.isnan(rows), axis=1)
    return np.where(counts > 0, np.nansum(rows, axis=1) / np.maximum(counts, 1), np.nan)


def line(
    steps: Sequence[float],
    values: Sequence[float] | np.ndarray,
    label: str,
    *,
    colour: str,
    dash: str = "solid",
    group: str = "",
    run: int = 0,
) -> list[go.Scatter]:
    """Returns the line of some values, and of their running mean if there are many.

    ``meta`` tells the page which of the two a line is, and its run. The legend lists neither line,
    see ``legend``.

    Args:
      group: group of the legend's entry that hides and shows the line.
      run: number of the run.
    """
    x, y = thinned(steps), thinned(values)
    style = {"color": colour, "dash": dash, "width": 2}
    common = {"x": x, "legendgroup": group or label, "showlegend": False}
    if len(x) < _SMOOTHED_FROM:
        mode, dots = "lines+markers", {"size": 4}
        one = {"name": label, "line": style, "mode": mode, "marker": dots, "meta": {"run": run}}
        return [go.Scatter(y=y, **one, **common)]
    window = 2 * (len(x) // _SMOOTHED_FROM) + 1
    # A value between two missing ones is on no line.
    common["mode"] = "lines+markers" if np.isnan(y).any() else "lines"
    common["marker"] = {"size": 4}
    name = f"{label}, mean of {window}"
    raw, mean = ({"lines": kind, "run": run} for kind in ("raw", "mean"))
    thin = style | {"width": 1}
    return [
        go.Scatter(y=y, name=label, line=thin, opacity=0.35, meta=raw, **common),
        go.Scatter(y=smoothed(y, window), name=name, line=style, meta=mean, **common),
    ]


def style(number: int, index: int, several: bool) -> dict[str, str]:
    """Returns colour and dash of a line: a colour per metric or, with several runs, per run."""
    colour = COLOURS[(number if several else index) % len(COLOURS)]
    return {"color": colour, "dash": DASHES[index % len(DASHES)] if several else "solid"}


def legend(labels: Iterable[str], several: bool) -> list[go.Scatter]:
    """Returns a legend entry per metric: its colour, or its dash if colours are for runs."""
    return [
        go.Scatter(
            x=[None],
            y=[None],
            name=label,
            mode="lines",
            legendgroup=label,
            line={"width": 2} | style(0, index, several) | ({"color": NEUTRAL} if several else {}),
        )
        for index, label in enumerate(labels)
    ]


def lines_of(
    runs: Sequence[RunData],
    found: Sequence[tuple[str, Sequence[np.ndarray]]],
    ranges: Mapping[tuple[str, int], np.ndarray] | None = None,
) -> list[go.Scatter]:
    """Returns lines over steps: a colour per metric, or with several runs per run and a dash.

    Args:
      found: (label, values of each run) per metric.
      ranges: (label, index of the run) -> least and greatest values, [2, steps].
    """
    several = len(runs) > 1
    traces = legend([label for label, _ in found], several) if len(found) > 1 else []
    drawn = []
    for index, (label, of_runs) in enumerate(found):
        for number, (run, values) in enumerate(zip(runs, of_runs, strict=True)):
            if not np.isfinite(values).any():
                continue
            name = label
            if several:
                name = f"{run.name}: {label}" if len(found) > 1 else run.name
            look = style(number, index, several)
            if ranges and (label, number) in ranges:
                low_high = ranges[label, number]
                drawn.append(_band(run.steps, low_high, name, look["color"], label, number))
            drawn += line(
                run.steps,
                values,
                name,
                colour=look["color"],
                dash=look["dash"],
                group=label,
                run=number,
            )
    return traces + drawn if drawn else []


def _band(
    steps: Sequence[float], low_high: np.ndarray, name: str, colour: str, group: str, run: int
) -> go.Scatter:
    """Returns the area between the least and the greatest values, where there are any."""
    x, low, high = thinned(steps), thinned(low_high[0]), thinned(low_high[1])
    kept = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[kept], low[kept], high[kept]
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        name=f"{name}, range",
        fill="toself",
        mode="none",
        fillcolor=colour,
        opacity=0.2,
        hoverinfo="skip",
        legendgroup=group,
        showlegend=False,
        meta={"run": run},
    )


def column(run: RunData, metric: str) -> np.ndarray:
    """Returns a metric's values; NaN for steps in which the run has none."""
    return np.asarray(run.metrics.get(metric, [np.nan] * len(run.steps)), np.float64)


def chart(lines: Lines, runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of lines; None if no run has any of the metrics."""
    found, ranges = [], {}
    for metric, label in lines.metrics:
        of_runs = [column(run, metric) * lines.scale for run in runs]
        for number, run in enumerate(runs):
            if (low_high := run.ranges.get(metric)) is not None:
                ranges[label, number] = np.stack(low_high) * lines.scale
        if lines.log:  # 0 has no place on a log axis
            of_runs = [np.where(values > 0, values, np.nan) for values in of_runs]
            ranges = {place: np.where(one > 0, one, np.nan) for place, one in ranges.items()}
        if lines.counts:
            of_runs = [np.nan_to_num(v) if np.isfinite(v).any() else v for v in of_runs]
        found.append((label, of_runs))
    figure = go.Figure(lines_of(runs, found, ranges), layout(STEP, lines.unit))
    if not figure.data:
        return None
    told = ""
    if lines.log:
        figure.update_yaxes(type="log", exponentformat="power")
    else:
        told = cut_off(figure, plotted(found))
    if ranges:
        told = f"{RANGES} {told}".strip()
    if len(runs) == 1:
        mark_changes(figure, runs[0])
    caption = lines.caption
    if told and caption and not caption.endswith("."):  # the meaning of a metric
        caption += "."
    return Chart(lines.key, lines.title, f"{caption} {told}".strip(), figure)


def plotted(found: Sequence[tuple[str, Sequence[np.ndarray]]]) -> list[np.ndarray]:
    """Returns the values of ``lines_of``, without running means."""
    return [thinned(values) for _, of_runs in found for values in of_runs]


def mark_changes(figure: go.Figure, run: RunData) -> None:
    """Adds a vertical line at each step after which the run was resumed, or its workers changed."""
    if run.history is None:
        return
    marks = [(step + 0.5, "resumed") for step in sorted(set(run.history.resumed))]
    for x, text in (*marks, *((step - 0.5, text) for step, text in run.history.resized)):
        figure.add_vline(
            x=x, line={"dash": "dot", "width": 1, "color": NEUTRAL},
            annotation={"text": text, "font": {"size": 10}},
        )  # fmt: skip


def present(*charts: Chart | None) -> list[Chart]:
    """Returns the charts that are not None."""
    return [chart for chart in charts if chart is not None]


_FAR = 5.0  # the axis of all values must be this many times as long as that of the others
_SHARE = 0.03  # of all values may be far; of each line, one in any case
_FEWEST = 6  # values of a line
_MARGIN = 0.05  # of the axis, on both sides


def cut_off(figure: go.Figure, lines: Sequence[np.ndarray], *, from_zero: bool = False) -> str:
    """Cuts a few far values off the y axis, such as the first step's time, which compiles.

    If lines are constant but for some peaks, none is far: the peaks are what such lines show.

    Args:
      lines: values of each line, which may be NaN; of a stacked chart, the sums.
      from_zero: True if the axis begins with 0.

    Returns:
      A sentence for the caption; "" if the axis has all values.
    """
    finite = [kept for values in lines if (kept := values[np.isfinite(values)]).size]
    values = np.sort(np.concatenate(finite)) if finite else np.zeros(0)
    most = max(len(finite), int(_SHARE * values.size))
    if values.size < _FEWEST * max(len(finite), 1):
        return ""
    lengths = values[values.size - most - 1 :] - values[: most + 1]  # of each stretch without them
    first = int(lengths.argmin())
    low, length = values[first], lengths[first]
    if length <= 0 or values[-1] - values[0] < _FAR * length:
        return ""
    near = values[(values >= low - length) & (values <= low + 2 * length)]
    low, high = min(near[0], 0.0) if from_zero else near[0], near[-1]
    margin = _MARGIN * (high - low)
    figure.update_yaxes(range=[low if from_zero and low == 0 else low - margin, high + margin])
    far = values[(values < low) | (values > high)]
    return f"{far.size} values are beyond the axis; a double click shows all." if far.size else ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of short texts; the first of each row is its name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading, with their figures.

    Attributes:
      note: a sentence below the charts.
      about: the questions that the section answers, for the table of contents.
      figures: figures above the charts.
    """

    title: str
    charts: Sequence[Chart]
    note: str = ""
    figures: Sequence[Figure] = ()
    about: str = ""

    @property
    def id(self) -> str:
        """The id of its heading on the page."""
        return f"section-{self.title.lower().replace(' ', '-')}"

    def __bool__(self) -> bool:
        """True if it has any content."""
        return bool(self.charts or self.figures)
