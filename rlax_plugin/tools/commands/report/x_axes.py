"""The x axes of charts over steps: steps, and the samples, tokens and hours until then.

A chart is plotted over steps. The page moves its points to another axis by the table of its run,
which is linear between two entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlax_plugin.tools.commands.report.run import RunData

STEP = "training step"
_MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class XAxis:
    """An x axis that charts over steps can have instead.

    Attributes:
      key: name of the column in the table.
      name: label of the switch.
      title: title of the axis.
      metric: metric whose sum over the steps is the position.
      per_unit: the sum is divided by it.
    """

    key: str
    name: str
    title: str
    metric: str
    per_unit: float = 1.0


X_AXES = (
    XAxis("samples", "samples", "samples scored", "rollout/samples"),
    XAxis("tokens", "tokens", "tokens of scored samples", "rollout/tokens"),
    XAxis("hours", "time", "hours of training steps", "time/step_s", 3600.0),
)


def available(runs: Sequence[RunData]) -> list[XAxis]:
    """Returns the axes whose metric every step of every run has recorded."""
    return [
        axis
        for axis in X_AXES
        if runs and all(run.steps and axis.metric in run.metrics
                        and np.isfinite(run.metrics[axis.metric]).all() for run in runs)
    ]  # fmt: skip


def table(run: RunData, axes: Sequence[XAxis]) -> dict[str, list[float]]:
    """Returns the positions on each axis at the ends of some steps, from 0 before the first one.

    Returns:
      "step" -> steps, ascending; key of an axis -> positions at the end of these steps.
    """
    steps = np.asarray(run.steps, np.float64)
    if not steps.size:
        return {"step": []}
    kept = np.unique(np.linspace(0, steps.size, min(steps.size + 1, _MAX_ENTRIES)).astype(int))
    columns = {"step": np.concatenate([steps[:1] - 1, steps])}
    for axis in axes:
        sums = np.cumsum(np.asarray(run.metrics[axis.metric], np.float64)) / axis.per_unit
        columns[axis.key] = np.concatenate([[0.0], sums])
    return {name: values[kept].tolist() for name, values in columns.items()}
