"""Chooses the groups of a run that are put on the page, if there are too many for one page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rlax_plugin.commands.report.recorded_groups import GroupAt

MAX_ROLLOUTS = 10_000
MAX_BYTES = 7_300_000  # of rollouts, as estimated; with plotly's 2 MB a page of 10 MB

_GOLDEN = 0.6180339887498949


def fits(group: GroupAt, max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES) -> bool:
    """True if a group alone fits on the page."""
    return group.samples <= max_rollouts and group.size <= max_bytes


def choose(
    groups: Sequence[GroupAt], max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES
) -> list[GroupAt]:
    """Returns as many groups as fit, with the steps evenly represented.

    Groups that would not fit alone are left out.
    """
    groups = [group for group in groups if fits(group, max_rollouts, max_bytes)]
    chosen: list[GroupAt] = []
    rollouts, size = 0, 0.0
    for group in _evenly(groups):
        rollouts, size = rollouts + group.samples, size + group.size
        if rollouts > max_rollouts or size > max_bytes:
            break
        chosen.append(group)
    return sorted(chosen, key=lambda g: (g.step, g.group))


def _evenly(groups: Sequence[GroupAt]) -> list[GroupAt]:
    """Returns the groups in an order of which every prefix is spread evenly over the steps.

    Steps take turns; multiples of the golden ratio, modulo 1, order them and the groups of each.
    """
    of_step: dict[int, list[GroupAt]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.group * _GOLDEN % 1):
        of_step[group.step].append(group)
    turns = [
        (turn, step * _GOLDEN % 1, group)
        for step, found in of_step.items()
        for turn, group in enumerate(found)
    ]
    return [group for _, _, group in sorted(turns, key=lambda t: t[:2])]
