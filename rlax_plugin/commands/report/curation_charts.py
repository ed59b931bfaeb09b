"""The charts of the section on curation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlax_plugin.commands.report.calibration import Bin
from rlax_plugin.commands.report.history import ACCEPTED, History
from rlax_plugin.commands.report.newest_rates import ONE_DOMAIN
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.series import COLOURS, NEUTRAL, Chart, layout, thinned
from rlax_plugin.commands.report.useful_groups import UsefulGroups
from rlax_plugin.commands.report.x_axes import STEP
from rlax_plugin.text.harmless import one_line

_COLUMNS = 100  # of a heat map, and bars of a stack: steps are put together beyond
_ROWS = 10
_MOST_REASONS = 7  # with a colour of their own
_OTHERS = "other reasons"
_LONGEST = 60  # characters of a name in a legend


def _spans(steps: Sequence[int]) -> list[slice]:
    """Returns slices that cut a list of steps into at most ``_COLUMNS`` parts of equal length."""
    size = max(1, -(-len(steps) // _COLUMNS))
    return [slice(start, start + size) for start in range(0, len(steps), size)]


def _span_name(span: Sequence[int]) -> str:
    return f"step {span[0]}" if len(span) == 1 else f"steps {span[0]} to {span[-1]}"


def pass_rates(run: RunData) -> Chart | None:
    """Returns a chart of the distribution of the scored groups' pass rates over time."""
    if run.history is None:
        return None
    steps = list(run.history.steps)
    spans = [steps[span] for span in _spans(steps)]
    size = int(run.setting("rollouts", "group_size", 0))
    rows = size if 0 < size <= _ROWS else _ROWS
    counts = np.zeros((rows + 1, len(spans)))
    for at, span in enumerate(spans):
        for step in span:
            for (passed, scored), groups in run.history.steps[step].pass_rates.items():
                # None and all have rows of their own: such groups have no contrast.
                row = np.clip(round(passed / scored * rows), 1, rows - 1)
                counts[{0: 0, scored: rows}.get(passed, row), at] += groups
    if not counts.any():
        return None
    total = counts.sum(axis=0)
    share = np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0) * 100
    names = [_span_name(span) for span in spans]
    figure = go.Figure(
        go.Heatmap(
            x=[float(np.mean(span)) for span in spans],
            y=[100 * row / rows for row in range(rows + 1)],
            z=share,
            customdata=np.dstack([counts, np.broadcast_to(names, counts.shape)]),
            colorscale="Viridis",
            colorbar={"title": {"text": "% of groups", "side": "right"}, "thickness": 12},
            hovertemplate="%{customdata[1]}, pass rate %{y:.0f} %: %{z:.1f} % of groups "
            "(%{customdata[0]})<extra></extra>",
        ),
        layout=layout(STEP, "samples of a group that pass, %", hovermode="closest"),
    )
    return Chart(
        f"pass-rates-{run.name}",
        "Pass rates of groups",
        "In the lowest and the highest row, the samples of a group all fail or all pass, so its "
        "rewards do not differ. Learning moves groups upwards.",
        figure,
        of=run.name,
    )


def fates(history: History) -> Chart:
    """Returns a chart of the outcomes of groups by step: trained, rejected or dropped."""
    steps = list(history.steps)
    spans = [steps[span] for span in _spans(steps)]
    whole = sum((at.outcomes for at in history.steps.values()), Counter[str]())
    reasons = [name for name, _ in whole.most_common() if name != ACCEPTED]
    others = set(reasons[_MOST_REASONS - 1 :]) if len(reasons) > _MOST_REASONS else set[str]()
    names = [ACCEPTED, *sorted(set(reasons) - others), *([_OTHERS] if others else [])]
    figure = go.Figure(layout=layout(STEP, "groups per step", barmode="stack", bargap=0))
    for index, name in enumerate(names):
        of_name = others if name == _OTHERS else {name}
        counts = [
            sum(history.steps[step].outcomes[one] for step in span for one in of_name)
            for span in spans
        ]
        figure.add_bar(
            x=[float(np.mean(span)) for span in spans],
            y=[count / len(span) for count, span in zip(counts, spans, strict=True)],
            name=_label(name),
            marker={"color": COLOURS[(2, 1, 3, 4, 5, 6, 7, 0)[index]], "line": {"width": 0}},
        )
    figure.update_layout(legend={"traceorder": "normal"})
    caption = "Each group counts once, in the step in which it was scored."
    if any(name.startswith("dropped") for name in whole):
        caption += " Dropped groups were accepted first, unless they were no longer needed."
    return Chart("outcomes", "What became of the groups", caption, figure)


def _label(name: str) -> str:
    plain = name in (ACCEPTED, _OTHERS) or name.startswith("dropped")
    return one_line(name if plain else f"rejected: {name}", _LONGEST)


def samples_per_useful_group(useful: UsefulGroups, group_size: int) -> Chart:
    """Returns a chart of the number of samples generated for each useful group, by step.

    Args:
      group_size: group size of the config; 0: not known.
    """
    spans = _spans(useful.steps)
    x = [float(np.mean(useful.steps[span])) for span in spans]
    samples, groups = (
        np.array([one[span].sum() for span in spans], np.float64)
        for one in (useful.samples_s, useful.useful_s)
    )
    y = np.divide(samples, groups, out=np.full_like(samples, np.nan), where=groups > 0)
    names = [_span_name(useful.steps[span]) for span in spans]
    figure = go.Figure(layout=layout(STEP, "samples", hovermode="closest"))
    figure.add_scatter(
        x=x,
        y=y,
        name="generated per useful group",
        mode="lines+markers",
        marker={"size": 4},
        line={"color": COLOURS[0], "width": 2},
        customdata=np.array([names, samples.astype(int), groups.astype(int)], object).T,
        hovertemplate="%{customdata[0]}: %{y:.1f} (%{customdata[1]:,} samples, "
        "%{customdata[2]:,} useful groups)<extra></extra>",
    )
    if group_size:
        figure.add_scatter(
            x=[x[0], x[-1]],
            y=[group_size, group_size],
            name="group size",
            mode="lines",
            line={"color": NEUTRAL, "width": 1, "dash": "dash"},
            hoverinfo="skip",
        )
    figure.update_yaxes(rangemode="tozero")
    return Chart(
        "samples-per-useful-group",
        "Samples per useful group",
        "Samples of all groups generated in a step, over the groups of its batch whose rewards "
        "differ. It is above the group size if groups are rejected or dropped, wait for a later "
        "batch, or have equal rewards.",
        figure,
    )


def calibration_chart(bins: Sequence[Bin], without: int, not_kept: int) -> Chart:
    """Returns a chart of predicted and observed pass rates, with the samples of each bin below.

    Args:
      without: number of groups left out because their prompts had no pass rate.
      not_kept: number of groups left out because their samples are not kept.
    """
    predicted, observed, low, high = (
        np.array([getattr(one, name) for one in bins])
        for name in ("predicted", "observed", "low", "high")
    )
    counts = [(one.samples, one.groups) for one in bins]
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 1])
    figure.update_layout(layout("", "", hovermode="closest"))
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="as predicted",
        mode="lines",
        line={"color": NEUTRAL, "width": 1, "dash": "dash"},
        hoverinfo="skip",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=predicted,
        y=observed,
        name="observed, with 90 % intervals",
        mode="lines+markers",
        marker={"size": 6},
        line={"color": COLOURS[0], "width": 1.5},
        error_y={"array": high - observed, "arrayminus": observed - low, "thickness": 1.2},
        customdata=np.column_stack([low, high, counts]),
        hovertemplate="predicted %{x:.3f}, observed %{y:.3f} [%{customdata[0]:.3f}, "
        "%{customdata[1]:.3f}]: %{customdata[2]:,} samples of %{customdata[3]:,} groups"
        "<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_bar(
        x=predicted,
        y=[one.samples for one in bins],
        width=0.03,
        marker={"color": COLOURS[0]},
        showlegend=False,
        hovertemplate="predicted %{x:.3f}: %{y:,} samples<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_yaxes(title_text="passed", range=[-0.03, 1.03], row=1, col=1)
    figure.update_yaxes(title_text="samples", rangemode="tozero", nticks=3, row=2, col=1)
    figure.update_xaxes(range=[-0.03, 1.03], row=1, col=1)
    figure.update_xaxes(title_text="pass rate of the prompt before the group", row=2, col=1)
    left_out = f"{without:,} groups whose prompts had no pass rate are left out"
    if not_kept:
        left_out += f", and {not_kept:,} whose samples are not kept"
    return Chart(
        "calibration",
        "Predicted and observed pass rates",
        "The prediction is pass_rate_before, the mean of the prompt's earlier samples, in which "
        "older ones count less. The mean of the posterior is not recorded; pass_rate_before is "
        "more extreme if the samples are few, and lags behind a policy that learns. Exactly 0 and "
        f"exactly 1 are points of their own. {left_out}.",
        figure,
    )


def domain_chart(
    steps: Sequence[int],
    means: np.ndarray,
    domains: tuple[str, ...],
    asked: np.ndarray,
    half_life: float,
) -> list[Chart]:
    """Returns a chart of the mean pass rate of each domain over time; none without scored groups.

    Args:
      means: float [domains, steps].
      asked: int [domains], number of used prompts; the domains with most of them are plotted.
    """
    drawn = [i for i in np.argsort(-asked, kind="stable").tolist() if np.isfinite(means[i]).any()]
    if not drawn:
        return []
    several = domains != ONE_DOMAIN
    figure = go.Figure(layout=layout(STEP, "mean pass rate"))
    for colour, index in zip(COLOURS, drawn, strict=False):
        name = (one_line(domains[index], _LONGEST) or "(none)") if several else "all prompts"
        figure.add_scatter(
            x=thinned(steps),
            y=thinned(means[index]),
            name=name,
            mode="lines+markers" if len(steps) < 30 else "lines",
            marker={"size": 4},
            line={"color": colour, "width": 2},
            hovertemplate="%{y:.3f}",
        )
    figure.update_yaxes(range=[0, 1])
    caption = (
        "Mean over the prompts that were asked until then. Each prompt counts once, with the "
        f"samples of this run; a sample counts half after {half_life:g} versions. Prompts that are "
        "not chosen again keep their rate."
    )
    if (more := len(drawn) - len(COLOURS)) > 0:
        caption += f" {more:,} domains of which fewer prompts were asked have no line."
    title = "Pass rate by domain" if several else "Pass rate of the prompts"
    return [Chart("domain-rates", title, caption, figure)]
