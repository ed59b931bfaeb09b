"""The batch rule and the layout of packed rows, in the plainest form: everything looked at anew.

What the project computes step by step must equal this, whatever came and went in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.training.objective.batches import sizes


def first_fit(
    lengths: Sequence[int], rows: int, length: int, sequences_per_row: int
) -> list[tuple[int, int, int]] | None:
    """See ``placing.place``: tries every row for every sample."""
    order = list(range(len(lengths)))
    if sequences_per_row > 1:
        order.sort(key=lambda sample: -lengths[sample])
    used, held = [0] * rows, [0] * rows
    places = {}
    for sample in order:
        fits = [
            row
            for row in range(rows)
            if used[row] + lengths[sample] <= length and held[row] < sequences_per_row
        ]
        if not fits:
            return None
        row = fits[0]
        held[row] += 1
        places[sample] = (row, used[row], held[row])
        used[row] += lengths[sample]
    return [places[sample] for sample in range(len(lengths))]


def choose(rule: BatchRule, groups: Sequence[ScoredGroup]) -> list[int] | None:
    """Ids of the next batch; [] if not even one group fits.

    Args:
      groups: in issue order; all older ones are scored.
    """
    if (complete := _complete(rule, groups)) is None:
        return None
    for count in range(complete, 0, -1):
        layout = rule.rows, rule.length, rule.sequences_per_row
        if first_fit(sizes(groups[:count]), *layout) is not None:
            return [group.id for group in groups[:count]]
    return []


def worth(rule: BatchRule, groups: Sequence[ScoredGroup]) -> int:
    """See ``BatchRule.worth``."""
    found = 0
    while (count := _complete(rule, groups)) is not None:
        found += rule.groups
        groups = groups[count:]
    if rule.tokens:
        return found + rule.groups * _tokens(groups) // rule.tokens
    return found + len(groups)


def _complete(rule: BatchRule, groups: Sequence[ScoredGroup]) -> int | None:
    for count in range(1, len(groups) + 1):
        some = groups[:count]
        enough = _tokens(some) >= rule.tokens if rule.tokens else count >= rule.groups
        full = len(sizes(some)) > rule.rows * rule.sequences_per_row
        over = rule.sequences_per_row > 1 and sum(sizes(some)) > rule.rows * rule.length
        if enough or full or over:
            return count
    return None


def _tokens(groups: Sequence[ScoredGroup]) -> int:
    return sum(episode.tokens for group in groups for episode in group.episodes)
