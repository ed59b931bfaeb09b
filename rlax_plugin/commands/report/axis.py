"""Axes that a few far values do not squash: they are cut off, marked at the edge, and told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

_COLOUR = "#8a93a3"
_FAR = 5.0  # the axis of all values must be this many times as long as that of the others
_SHARE = 0.03  # of all values may be far; of each line, one in any case
_FEWEST = 6  # values of a line
_MARGIN = 0.05  # of the axis, on both sides
Line = tuple[Sequence[float] | np.ndarray, np.ndarray]
"""x and y of a line; y may be NaN."""


def core(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Returns lowest and highest of all values but a few far ones; None if there are no such ones.

    If lines are constant but for some peaks, none is far: the peaks are what such lines show.
    """
    finite = [y[np.isfinite(y)] for _, y in lines]
    finite = [y for y in finite if y.size]
    values = np.sort(np.concatenate(finite)) if finite else np.zeros(0)
    most = max(len(finite), int(_SHARE * values.size))
    if values.size < _FEWEST * max(len(finite), 1):
        return None
    kept = values.size - most
    lengths = values[kept - 1 :] - values[: most + 1]  # of each stretch of so many values
    first = int(lengths.argmin())
    length = lengths[first]
    if length <= 0 or values[-1] - values[0] < _FAR * length:
        return None
    # Those that are just outside are no outliers.
    near = values[(values >= values[first] - length) & (values <= values[first] + 2 * length)]
    return float(near[0]), float(near[-1])


def cut_off(
    figure: go.Figure,
    lines: Sequence[Line],
    *,
    from_zero: bool = False,
    runs: Sequence[int] = (),
) -> str:
    """Cuts far values off the y axis of a chart, with a triangle at the edge for each of them.

    Args:
      lines: of the chart; of a stacked one, the sums.
      runs: number of the run of each line; empty: there is only one run.
      from_zero: True if the axis begins with 0.

    Returns:
      A sentence for the caption; "" if the axis has all values.
    """
    if (kept := core(lines)) is None:
        return ""
    low, high = (min(kept[0], 0.0), kept[1]) if from_zero else kept
    margin = _MARGIN * (high - low)
    edges = (low if from_zero and low == 0 else low - margin, high + margin)
    of_run: dict[int, list[tuple[float, float]]] = {}
    for run, (xs, ys) in zip(runs or [0] * len(lines), lines, strict=True):
        for x, y in zip(xs, ys, strict=True):
            if np.isfinite(y) and not edges[0] <= y <= edges[1]:
                of_run.setdefault(run, []).append((float(x), float(y)))
    if not of_run:
        return ""
    figure.update_yaxes(range=list(edges))
    for run, points in of_run.items():
        figure.add_trace(_marks(points, edges, run))
    far = [point for points in of_run.values() for point in points]
    (x, y), several = max(far, key=lambda one: abs(one[1])), len(far) > 1
    which = f"{len(far)} values are beyond the axis, such as" if several else "Beyond the axis is"
    return f"{which} {y:.4g} at {x:g} (triangle); a double click shows all."


def _marks(far: Sequence[tuple[float, float]], edges: tuple[float, float], run: int) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _ in far],
        y=[edges[y > edges[1]] for _, y in far],
        customdata=[y for _, y in far],
        name="beyond the axis",
        mode="markers",
        marker={
            "symbol": ["triangle-up" if y > edges[1] else "triangle-down" for _, y in far],
            "size": 9,
            "color": _COLOUR,
        },
        meta={"run": run},
        cliponaxis=False,
        showlegend=False,
        hovertemplate="%{customdata:.4g}",
    )
