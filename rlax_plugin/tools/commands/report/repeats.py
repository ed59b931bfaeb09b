"""Runs that repeat one another, such as with other seeds, become one line: mean and range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.config.identity import leaves
from rlax_plugin.run.evaluation.statistics import Estimate
from rlax_plugin.tools.commands.report.charts import ENDED
from rlax_plugin.tools.commands.report.evaluations import Measured
from rlax_plugin.tools.commands.report.page import config_differences
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import column


def repeats(runs: Sequence[RunData], key: str) -> list[RunData]:
    """Returns a run for each value of a config key, which has the means of those with this value.

    A step or an evaluation that only some of them have is left out.

    Args:
      key: dotted, such as ``rlax.staleness.max_staleness``.

    Raises:
      ConfigError: a run has no such key.
    """
    found: dict[tuple[bool, float, str], tuple[str, list[RunData]]] = {}
    for run in runs:
        config: dict[str, Any] = dict(leaves(run.config))
        if key not in config:
            differing = alternatives(key, (name for name, _ in config_differences(runs)))
            reason = f"is no key of the config of {run.name}; of those that differ, {differing}"
            raise ConfigError("--by", key, reason)
        value = str(config[key])
        found.setdefault(_place(value), (value, []))[1].append(run)  # 1 and 1.0 are one
    last = key.rpartition(".")[2]
    return [
        _mean(f"{last} {value}, {'one run' if len(some) == 1 else f'{len(some)} runs'}", some)
        for _, (value, some) in sorted(found.items())
    ]


def _place(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def _mean(name: str, runs: Sequence[RunData]) -> RunData:
    steps = sorted(set.intersection(*(set(run.steps) for run in runs)))
    made = RunData(name, "", metrics={"step": steps}, ranges={})
    for metric in dict.fromkeys(metric for run in runs for metric in run.metrics):
        counted = metric.startswith(ENDED)  # a step, or a run, without a value has counted none
        if metric == "step" or not (counted or all(metric in run.metrics for run in runs)):
            continue
        of_runs = [dict(zip(run.steps, column(run, metric).tolist(), strict=True)) for run in runs]
        values_rs = np.array([[values[step] for step in steps] for values in of_runs])
        if counted:
            values_rs = np.nan_to_num(values_rs)
        made.metrics[metric] = values_rs.mean(axis=0).tolist()
        if len(runs) > 1:
            made.ranges[metric] = (values_rs.min(axis=0), values_rs.max(axis=0))
    of_runs = [{(m.held_out, m.measure, m.version): m for m in run.measured} for run in runs]
    made.measured = tuple(
        _mean_of([measured[place] for measured in of_runs])
        for place in of_runs[0]
        if all(place in measured for measured in of_runs)
    )
    return made


def _mean_of(measured: Sequence[Measured]) -> Measured:
    """Returns the mean, whose interval is the range; a single one keeps its own interval."""
    first, values = measured[0], [one.estimate.value for one in measured]
    if len(measured) == 1:
        return first
    estimate = first.estimate
    mean = float(np.mean(values))
    found = Estimate(mean, estimate.n, estimate.problems, (min(values), max(values)))
    return replace(first, estimate=found)
