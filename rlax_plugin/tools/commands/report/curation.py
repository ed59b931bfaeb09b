"""The section on curation: what became of groups, how hard they were, and the prompts asked."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.data.curation.pass_rate_files import unpacked
from rlax_plugin.data.prompts.record import training_prompts
from rlax_plugin.run.state.snapshots import rates_name, snapshot_steps
from rlax_plugin.tools.commands.report.figures import Figure
from rlax_plugin.tools.commands.report.history import ACCEPTED, History
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import COLOURS, Chart, Section, column, layout
from rlax_plugin.tools.commands.report.x_axes import STEP

TITLE = "Rollouts and data"


def curation_section(files: RunFiles, run: RunData) -> Section:
    """Returns the section of one run.

    Raises:
      RlaxError: the file system fails.
    """
    figures, charts = useful_figures(run), list[Chart]()
    if run.history is not None and run.history.steps:
        charts.append(fates(run.history))
        charts += pass_rates(run.history, int(run.setting("rollouts", "group_size", 0)))
        with run.noting():
            charts += domain_chart(run.history, domains_of(files))
        with run.noting():
            if (prompts := training_prompts(files)) is not None:
                never = prompts - len(run.history.asked)
                share = f"{100 * never / max(prompts, 1):.1f} % of {prompts:,}"
                figures.append(Figure("prompts never asked", f"{never:,}", share))
    return Section(TITLE, charts, figures=figures)


def useful_figures(run: RunData) -> list[Figure]:
    """Returns figures of useful groups: those that trained and whose rewards differ."""
    groups = np.nan_to_num(column(run, "batch/groups"))
    equal = np.nan_to_num(column(run, "batch/groups_equal"))
    useful, trained = round(float(groups @ (1 - equal))), int(groups.sum())
    samples = int(np.nansum(column(run, "rollout/samples")))
    found = []
    if useful and samples:
        remark = f"{samples:,} samples, {useful:,} useful groups"
        if size := int(run.setting("rollouts", "group_size", 0)):
            remark += f"; {size} if no group is wasted"
        found.append(Figure("samples per useful group", f"{samples / useful:.1f}", remark))
    if trained:
        remark = f"{useful:,} of {trained:,} groups that trained"
        share = f"{100 * useful / trained:.1f} %"
        found.append(Figure("trained with mixed rewards", share, remark))
    return found


def domains_of(files: RunFiles) -> dict[str, str]:
    """Returns the domain of each prompt with a pass rate, from the newest snapshot.

    Raises:
      RlaxError: it is damaged, or was removed meanwhile.
    """
    if not (steps := snapshot_steps(files)):
        return {}
    name = rates_name(steps[-1])
    try:
        table = unpacked(files.get(name), name).table
    except FileNotFoundError:
        raise RlaxError(f"{name} does not exist") from None
    return {
        prompt: domain or "(none)"
        for prompt, domain in zip(table["id"].to_pylist(), table["domain"].to_pylist(), strict=True)
    }


_COLUMNS = 100  # of a heat map, and bars of a stack: steps are put together beyond
_ROWS = 10
_MOST_REASONS = 7  # with a colour of their own
_OTHERS = "other reasons"
_LONGEST = 60  # characters of a name in a legend


def _spans(history: History) -> list[tuple[int, ...]]:
    """Returns the steps, cut into at most ``_COLUMNS`` parts of equal length."""
    return list(itertools.batched(history.steps, max(1, -(-len(history.steps) // _COLUMNS))))


def _span_name(span: Sequence[int]) -> str:
    return f"step {span[0]}" if len(span) == 1 else f"steps {span[0]} to {span[-1]}"


def pass_rates(history: History, size: int) -> list[Chart]:
    """Returns a chart of the distribution of the scored groups' pass rates over time.

    Args:
      size: group size of the config; 0: not known.
    """
    spans = _spans(history)
    rows = size if 0 < size <= _ROWS else _ROWS
    counts = np.zeros((rows + 1, len(spans)))
    for at, span in enumerate(spans):
        for step in span:
            for _, passed, scored in history.steps[step].scored:
                # None and all have rows of their own: such groups have no contrast.
                row = min(max(round(passed / scored * rows), 1), rows - 1)
                counts[{0: 0, scored: rows}.get(passed, row), at] += 1
    if not counts.any():
        return []
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
    caption = (
        "In the lowest and the highest row, the samples of a group all fail or all pass, so its "
        "rewards do not differ. Learning moves groups upwards."
    )
    return [Chart("pass-rates", "Pass rates of groups", caption, figure)]


def fates(history: History) -> Chart:
    """Returns a chart of the outcomes of groups by step: trained, rejected or dropped."""
    spans = _spans(history)
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


def domain_chart(history: History, domains: Mapping[str, str]) -> list[Chart]:
    """Returns a chart of the share of each domain's samples that passed; none for one domain.

    Args:
      domains: prompt -> domain, as far as known.
    """
    asked = Counter(domains[prompt] for prompt in history.asked if prompt in domains)
    if len(asked) < 2:
        return []
    spans = _spans(history)
    figure = go.Figure(layout=layout(STEP, "samples that pass, %"))
    for colour, (domain, _) in zip(COLOURS, asked.most_common(), strict=False):
        shares = []
        for span in spans:
            groups = (group for step in span for group in history.steps[step].scored)
            counts = [(n, of) for prompt, n, of in groups if domains.get(prompt) == domain]
            scored = sum(of for _, of in counts)
            shares.append(100 * sum(n for n, _ in counts) / scored if scored else np.nan)
        figure.add_scatter(
            x=[float(np.mean(span)) for span in spans],
            y=shares,
            name=one_line(domain, _LONGEST),
            mode="lines+markers",
            marker={"size": 4},
            line={"color": colour, "width": 2},
        )
    figure.update_yaxes(range=[0, 100])
    caption = "Of all groups scored in a step; their prompts are those that the sampler chose."
    if (more := len(asked) - len(COLOURS)) > 0:
        caption += f" {more:,} domains of which fewer prompts were asked have no line."
    return [Chart("domain-rates", "Pass rate by domain", caption, figure)]
