"""The cost of useful groups: samples generated for each trained group with a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlax_plugin.commands.report.history import History
from rlax_plugin.commands.report.recorded_groups import GroupAt


@dataclass(frozen=True, slots=True, eq=False)
class UsefulGroups:
    """Counts of useful groups: trained groups whose rewards differ.

    Attributes:
      steps: steps of the journal.
      samples_s: int [steps], samples generated of all groups.
      useful_s: int [steps], useful groups by the step in which they trained.
      trained: number of groups that have trained.
      counted: number of trained groups without recorded samples; they are useful if some samples
        passed and some did not.
    """

    steps: list[int]
    samples_s: np.ndarray
    useful_s: np.ndarray
    trained: int
    counted: int

    @property
    def samples(self) -> int:
        return int(self.samples_s.sum())

    @property
    def useful(self) -> int:
        return int(self.useful_s.sum())


def useful_groups(history: History, recorded: Mapping[int, GroupAt]) -> UsefulGroups:
    """Counts useful groups.

    Args:
      recorded: group -> its recorded samples, as far as they are kept.
    """
    steps = list(history.steps)
    useful = dict.fromkeys(steps, 0)
    names = ("group", "trained_at", "passed", "scored")
    rows = zip(*(history.groups.column(name).tolist() for name in names), strict=True)
    trained = counted = 0
    for group, at, passed, scored in rows:
        if not at:
            continue
        trained += 1
        if (known := recorded.get(group)) is None:
            counted += 1
            mixed = 0 < passed < scored
        else:
            mixed = known.mixed
        if mixed:
            useful[at] = useful.get(at, 0) + 1
    return UsefulGroups(
        steps=steps,
        samples_s=np.array([at.samples for at in history.steps.values()], np.int64),
        useful_s=np.array([useful[step] for step in steps], np.int64),
        trained=trained,
        counted=counted,
    )
