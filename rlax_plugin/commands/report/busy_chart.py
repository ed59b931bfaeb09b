"""The chart of the busy parts of a run in the last steps: a line for each part."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from rlax_plugin.commands.report.busy import CRITICAL, BusyStep, lanes_of
from rlax_plugin.commands.report.series import COLOURS, NEUTRAL, Chart, layout
from rlax_plugin.metrics.spans import Span

LAST = 50
"""Steps that are read for the chart."""

_COLOURS = {
    "trains": COLOURS[0],
    "generates": COLOURS[2],
    "scores groups": COLOURS[4],
    "loads weights": COLOURS[1],
    "writes a version": COLOURS[7],
    "writes the batch": COLOURS[5],
    "hands over weights": COLOURS[6],
    "saves the controller's state": COLOURS[3],
}
_MOST_SPANS = 2000
_MOST_LANES = 40
_MOST_LABELS = 20  # of steps
_LANE_PX, _FRAME_PX = 24, 130


def busy_chart(steps: Sequence[BusyStep]) -> Chart | None:
    """Returns a chart of the newest of some steps, as many as one chart can show."""
    shown: list[BusyStep] = []
    for step in reversed(steps):
        if shown and sum(len(one.spans) for one in (*shown, step)) > _MOST_SPANS:
            break
        shown.insert(0, step)
    if not shown:
        return None
    lanes = lanes_of(shown)
    left_out = len(lanes) - _MOST_LANES
    lanes = lanes[:_MOST_LANES]
    begin_s = shown[0].began_s
    of_activity: dict[str, list[Span]] = {}
    for span in dict.fromkeys(span for step in shown for span in step.spans):
        if span.lane in lanes and span.ended_s > begin_s:
            of_activity.setdefault(span.activity, []).append(span)
    figure = go.Figure(layout=layout("seconds", "", barmode="overlay", hovermode="closest"))
    for activity, spans in sorted(of_activity.items()):
        bars = _bars(spans, [span.lane for span in spans], begin_s)
        figure.add_trace(bars.update(name=activity, marker_color=_colour(activity)))
    path = [span for step in shown for span in step.critical]
    bars = _bars(path, [CRITICAL] * len(path), begin_s)
    colours = [_colour(span.activity) for span in path]
    figure.add_trace(bars.update(name=CRITICAL, marker_color=colours, showlegend=False))
    every = -(-len(shown) // _MOST_LABELS)
    for step in shown:
        text = f"{step.step}" if (shown[-1].step - step.step) % every == 0 else ""
        figure.add_vline(
            x=step.ended_s - begin_s,
            line={"dash": "dot", "width": 1, "color": NEUTRAL},
            annotation={"text": text, "font": {"size": 10}, "yanchor": "bottom"},
        )
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=[*lanes[::-1], CRITICAL]
    )
    figure.update_yaxes(fixedrange=True)
    height_px = _FRAME_PX + _LANE_PX * (len(lanes) + 1)
    figure.update_layout(legend={"y": 1 + _LANE_PX / height_px})
    caption = (
        f"Steps {shown[0].step:,} to {shown[-1].step:,}; dotted lines are their ends. Drag to zoom "
        "in, double-click to zoom out. rlax report RUN --trace FILE writes all steps."
    )
    if left_out > 0:
        caption += f" {left_out:,} workers have no line."
    return Chart("busy", "Who was busy", caption, figure, height_px=height_px)


def _colour(activity: str) -> str:
    return _COLOURS.get(activity, "#c3c9d4" if activity.startswith("waits") else NEUTRAL)


def _bars(spans: Sequence[Span], lanes: Sequence[str], begin_s: float) -> go.Bar:
    return go.Bar(
        base=[round(span.began_s - begin_s, 4) for span in spans],
        x=[round(span.ended_s - span.began_s, 4) for span in spans],
        y=list(lanes),
        orientation="h",
        marker={"line": {"width": 0}},
        customdata=[f"{span.lane}: {span.activity}" for span in spans],
        hovertemplate="%{customdata}, %{x:.3f} s, from %{base:.3f} s<extra></extra>",
    )
