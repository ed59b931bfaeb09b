"""The charts of the page, by section, for one run or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.base.endings import Ending
from rlax_plugin.run.metrics import file
from rlax_plugin.run.metrics import names as metric_names
from rlax_plugin.tools.commands.report import curation
from rlax_plugin.tools.commands.report.evaluations import SOLVED, Measured
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import (
    COLOURS,
    VERSION,
    Chart,
    Lines,
    Section,
    chart,
    column,
    cut_off,
    layout,
    legend,
    lines_of,
    mark_changes,
    plotted,
    present,
    style,
    thinned,
)
from rlax_plugin.tools.commands.report.x_axes import STEP

_REWARD = Lines(
    "reward", "Reward", "mean reward per sample", (("reward/mean", "reward"),),
    "Over all groups scored in a step, including those that did not train.",
)  # fmt: skip
_LENGTH = Lines(
    "length", "Completion length", "tokens per sample, mean",
    (("length/issued_mean", "scored"), ("length/trained_mean", "trained")),
    "If the lines differ, short or long answers are rejected or dropped more often.",
)  # fmt: skip
_TURNS = Lines(
    "turns", "Turns per episode", "answers of the policy per episode, mean",
    (("episode/turns_mean", "turns"),),
    "Over all episodes scored in a step, including those that did not train.",
)  # fmt: skip
_ERRORS = Lines(
    "reward-errors", "Failed rewards", "samples per step", (("reward/errors", "errors"),),
    "Samples whose reward raised an error or took too long; they do not count as 0.",
)  # fmt: skip
_STALENESS = Lines(
    "staleness", "Staleness", "weight versions",
    (("staleness/mean", "mean"), ("staleness/max", "largest")),
    "1: generated with the weights that the step starts from (on-policy); each older version adds "
    "1.",
)  # fmt: skip
_FLEET = Lines("workers", "Workers", "workers ready", (("rollout/workers", "workers"),))
_GAP = Lines(
    "logprob-gap", "Log-prob gap", "|trainer - sampler|, nats per token",
    (("logprob_gap/mean", "mean"), ("logprob_gap/p95", "95th percentile"),
     ("logprob_gap/max", "largest")),
    "Between what the sampler recorded and what the trainer computes with the same weights. Exact "
    "agreement, 0, has no place on this axis.", log=True,
)  # fmt: skip
_BESIDE = Lines(
    "beside", "Time beside the training loop", "seconds, log scale",
    (("time/generate_s", "generating"), ("time/reward_s", "scoring, per group"),
     ("time/commit_s", "writing the batch"), ("time/publish_s", "publishing weights")),
    "This work runs in parallel to training; if it takes longer, the trainer waits.", log=True,
)  # fmt: skip
_SAVED = Lines(
    "tokens-saved", "Tokens saved by cancelling", "tokens per step, estimated",
    (("curation/tokens_saved", "not generated"),),
    "Groups that batches no longer needed were not generated to their end.",
)  # fmt: skip
_STEP_TIME = Lines("step-time", "Time per step", "seconds", (("time/step_s", "step"),))
_PACKING = Lines(
    "packing", "Packing", "share of the batch's positions, %",
    (("batch/packing_efficiency", "filled with tokens"),), scale=100,
)  # fmt: skip

_REWARD_PART, ENDED = "reward_part/", "episode_ended/"
# Beginnings of the names of other metrics, by section.
_OBJECTIVE = ("objective/", "demonstrations/", "schedule/", "learning/", "logprob_gap/")
_ROLLOUTS = ("reward/", "reward_metric/", "curation/", "length/", "episode/", "batch/")
_MACHINES = ("time/", "rollout/", "train/")
_GAP_FROM = "logprob_gap/p95_from_"
_MACHINE = "machine/"
"""Metrics are named ``machine/<processes>_<figure>``; no first part has an underscore."""
# With intervals, or several in one chart.
_ENVIRONMENT = "environment_"  # the name of one of several follows, and a figure
_TOGETHER = ("evaluation", _REWARD_PART, ENDED, _MACHINE, _ENVIRONMENT)
_MOST_OTHERS = 100  # charts of a section: plug-ins may invent names
_SHOWN_ELSEWHERE = {
    metric
    for lines in (_REWARD, _LENGTH, _TURNS, _ERRORS, _STALENESS, _FLEET, _GAP, _BESIDE, _SAVED,
                  _PACKING)
    for metric, _ in lines.metrics
} | {
    "step", "time/step_s", "time/wait_s", "time/train_s", "time/publish_on_loop_s",
    "curation/groups_issued", "curation/groups_scored", "rollout/tokens", "rollout/samples",
    "train/tokens", "batch/rows",
    "logprob_gap/tokens", "objective/tokens", "objective/sequences",
    "learning/total_weights",
}  # fmt: skip


def sections(runs: Sequence[RunData], curated: Section | None = None) -> list[Section]:
    """Returns every section for which any of the runs has data.

    Args:
      curated: section on curation of a page of one run, besides the metrics.
    """
    several = len(runs) > 1
    learning = Section(
        "Learning",
        present(chart(_REWARD, runs), *_reward_parts(runs), *evaluations(runs)),
        about="whether the policy improves",
    )
    objective, constant = _others(runs, _OBJECTIVE)
    staleness = Section(
        "Staleness",
        present(chart(_STALENESS, runs)),
        about="how old the policy is that generated what trains",
    )
    machines, constant_figures = _others(runs, _MACHINES)
    time = Section(
        "Time and machines",
        [
            *present(
                None if several else phases(runs[0]),
                chart(_STEP_TIME, runs) if several else chart(_BESIDE, runs),
                throughput(runs),
                _if_varied(_PACKING, runs),
                _if_varied(_FLEET, runs),
                *_machine_charts(runs),
            ),
            *machines,
        ],
        constant_figures,
        about="what a step waits for, and what the machines have to give",
    )
    found = [
        learning,
        Section(
            "Objective",
            [*present(chart(_GAP, runs), _gap_by_depth(runs)), *objective],
            constant,
            about="loss, gradient and ratios, and whether trainer and sampler agree",
        ),
        _rollouts_and_data(runs, curated),
        staleness,
        time,
        Section("Further metrics", *_others(runs, ()), about="what plug-ins report, and the rest"),
    ]
    return [section for section in found if section]


def _rollouts_and_data(runs: Sequence[RunData], curated: Section | None) -> Section:
    others, constant = _others(runs, _ROLLOUTS)
    of_runs = [
        *present(
            chart(_LENGTH, runs),
            chart(_TURNS, runs),
            _if_any(_ERRORS, runs),
            _endings(runs),
            _if_any(_SAVED, runs),
            *_environment_charts(runs),
        ),
        *others,
    ]
    about = "what was asked and answered, how hard it was, and what became of it"
    if curated is None:
        return Section(curation.TITLE, of_runs, constant, about=about)
    note = " ".join(filter(None, (curated.note, constant)))
    return replace(curated, charts=[*curated.charts, *of_runs], note=note, about=about)


def _reward_parts(runs: Sequence[RunData]) -> list[Chart | None]:
    """Returns a chart of the mean of each of several rewards; of several runs one for each."""
    names = sorted({n for run in runs for n in run.metrics if n.startswith(_REWARD_PART)})
    pairs = tuple((name, name.removeprefix(_REWARD_PART)) for name in names)
    title, unit = "Rewards, one by one", "mean per sample"
    if len(runs) > 1:
        return [
            chart(Lines(f"reward-part-{label}", f"{title}: {label}", unit, ((name, label),)), runs)
            for name, label in pairs
        ]
    caption = "Mean of each of rlax.rewards; the reward is their sum, each times its weight."
    return [chart(Lines("reward-parts", title, unit, pairs, caption), runs)] if names else []


def _endings(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of how samples and requests ended, if any did not simply end."""
    names = sorted({n for run in runs for n in run.metrics if n.startswith(ENDED)})
    pairs = tuple((name, name.removeprefix(ENDED)) for name in names)
    caption = "By status; docs/endings.md says who can have caused it, and what trains."
    title = "How samples and requests ended"
    lines = Lines("endings", title, "per step", pairs, caption, counts=True)
    return chart(lines, runs) if set(names) - {f"{ENDED}{Ending.DONE}"} else None


def _gap_by_depth(runs: Sequence[RunData]) -> Chart | None:
    """Returns a chart of the log-prob gap at each depth, if tokens were at several."""
    names = {name for run in runs for name in run.metrics if name.startswith(_GAP_FROM)}
    depths = sorted(int(name.removeprefix(_GAP_FROM)) for name in names)
    pairs = tuple((f"{_GAP_FROM}{depth}", f"from {depth:,} tokens") for depth in depths)
    caption = "By the number of tokens before. A line that lies above the others names the depth "
    caption += "at which trainer and rollout engine begin to differ."
    title, unit = "Log-prob gap by depth", "nats per token, 95th percentile"
    lines = Lines("logprob-gap-depth", title, unit, pairs, caption, log=True)
    return chart(lines, runs) if names else None


def _machine_charts(runs: Sequence[RunData]) -> list[Chart | None]:
    """Returns a chart of each figure of the machines, with a line for each kind of processes."""
    names = sorted({name for run in runs for name in run.metrics if name.startswith(_MACHINE)})
    figures: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        processes, _, figure = name.removeprefix(_MACHINE).partition("_")
        figures.setdefault(figure, []).append((name, processes))
    charts = []
    for figure, pairs in figures.items():
        row = metric_names.find(pairs[0][0])
        unit = row.unit if row else figure.replace("_", " ")
        caption = f"of {' and of '.join(processes for _, processes in pairs)}"
        lines = Lines(f"machine-{figure}", f"{_MACHINE}{figure}", unit, tuple(pairs), caption)
        charts.append(chart(lines, runs))
    return charts


def _environment_charts(runs: Sequence[RunData]) -> list[Chart | None]:
    """Returns a chart of each figure of several environments, with a line for each of them."""
    names = sorted({name for run in runs for name in run.metrics if name.startswith(_ENVIRONMENT)})
    figures: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        environment, _, figure = name.removeprefix(_ENVIRONMENT).partition("/")
        figures.setdefault(figure, []).append((name, environment))
    charts = []
    for figure, pairs in figures.items():
        row = metric_names.find(pairs[0][0])
        unit = row.unit if row else figure.replace("_", " ")
        title = f"By environment: {figure.replace('_', ' ')}"
        lines = Lines(
            f"environment-{figure}", title, unit, tuple(pairs), row.meaning if row else ""
        )
        charts.append(chart(lines, runs))
    return charts


def _others(runs: Sequence[RunData], stages: tuple[str, ...]) -> tuple[list[Chart], str]:
    """Returns a chart for each of the other metrics of some stages, and a note on constant ones.

    Args:
      stages: beginnings of names; empty: those that no section has.
    """
    reported = {name for run in runs for name in run.metrics if not name.startswith(_GAP_FROM)}
    names = sorted(reported - _SHOWN_ELSEWHERE)
    charts, constant, elsewhere = [], [], (*_OBJECTIVE, *_ROLLOUTS, *_MACHINES, *_TOGETHER)
    for name in names:
        if name.startswith(stages or elsewhere) != bool(stages):
            continue
        if len(charts) == _MOST_OTHERS:
            constant.append(f"and further metrics, which are in {file.NAME}")
            break
        row = metric_names.find(name)
        short = name.rpartition("/")[2]
        unit, meaning = (row.unit, row.meaning) if row and not row.is_pattern else ("", "")
        if unit in ("", "1"):
            unit = short.replace("_", " ")
        lines = Lines(name.replace("/", "-"), name, unit, ((name, short),), meaning)
        if (found := _if_varied(lines, runs)) is not None:
            charts.append(found)
        elif (values := _finite(lines, runs)).size:
            constant.append(f"{name} = {values[0]:g}")
    return charts, f"Constant: {', '.join(constant)}." if constant else ""


def _if_any(lines: Lines, runs: Sequence[RunData]) -> Chart | None:
    return chart(lines, runs) if _finite(lines, runs).any() else None


def _if_varied(lines: Lines, runs: Sequence[RunData]) -> Chart | None:
    values = _finite(lines, runs)
    return chart(lines, runs) if values.size and np.ptp(values) > 0 else None


def _finite(lines: Lines, runs: Sequence[RunData]) -> np.ndarray:
    values = np.concatenate([column(run, metric) for run in runs for metric, _ in lines.metrics])
    return values[np.isfinite(values)]


_PHASES = (
    ("time/wait_s", "waiting for the batch"),
    ("time/train_s", "training step"),
    ("time/publish_on_loop_s", "copying weights"),
)


_INTERVALS = "95 % intervals over the choice of problems"


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
        caption = f"Bars are {_INTERVALS}."
        of_several = {bool(run.ranges) for run, found in zip(runs, of_runs, strict=True) if found}
        if True in of_several:
            alone = f"; of one run alone, {_INTERVALS}" if False in of_several else ""
            caption = f"Points are means of runs, bars their range{alone}."
        title = f"Held out, {held_out}: {what}"
        yield Chart(f"evaluation-{held_out}-{family}", title, caption, figure)


def _with_intervals(
    found: Sequence[Measured], name: str, group: str, look: dict[str, str], percent: bool, run: int
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
