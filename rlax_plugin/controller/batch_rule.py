"""Chooses the accepted groups of a batch, by a number of groups or of tokens, and by its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import TrainingError
from rlax_plugin.objective.batches import place, sizes
from rlax_plugin.types import ScoredGroup


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Decides when groups, in issue order, make a batch, and how many of them.

    A batch is complete with its last group or token, or once its groups hold more sequences or
    positions than it has. It then consists of as many of these groups as can be laid out, from the
    first. So it depends on the groups and their order alone, not on the time of the check.

    Attributes:
      groups: groups of a batch; where ``tokens`` decide, as many as are expected to hold them.
      tokens: completion tokens of a batch, reached by its last group (Ring-lite's C3PO,
        https://arxiv.org/abs/2506.14731); 0: ``groups`` decide.
      rows, length, sequences_per_row: see ``batches.place``.
    """

    groups: int
    tokens: int
    rows: int
    length: int
    sequences_per_row: int

    @classmethod
    def of(cls, section: RlaxSection) -> BatchRule:
        """Returns the rule of a config."""
        return cls(
            groups=section.rollouts.groups_per_step,
            tokens=section.batches.tokens,
            rows=section.batch_rows,
            length=section.row_tokens,
            sequences_per_row=section.batches.sequences_per_row,
        )

    def choose(self, groups: Sequence[ScoredGroup]) -> tuple[ScoredGroup, ...] | None:
        """Returns the next batch; None while it is not complete.

        Args:
          groups: accepted ones in issue order. All older groups must be scored already.

        Raises:
          TrainingError: not even one group can be laid out.
        """
        complete = self._complete(groups)
        if complete is None:
            return None
        for count in range(complete, 0, -1):
            if self._fits(groups[:count]):
                return tuple(groups[:count])
        # A config whose batch cannot hold any one group is rejected.
        raise TrainingError(
            f"group {groups[0].id} with samples of {sizes(groups[:1])} positions does not fit into "
            f"{self.rows} rows of {self.length}"
        )

    def completes(self, groups: Sequence[ScoredGroup]) -> bool:
        """True if ``choose`` would return a batch, or raise because a group is too large."""
        return self._complete(groups) is not None

    def worth(self, groups: Sequence[ScoredGroup]) -> int:
        """Converts groups to a count by which ``self.groups`` make a batch.

        Groups that do not complete a batch count as less than ``self.groups``.
        """
        worth = 0
        while (count := self._complete(groups)) is not None:
            worth += self.groups
            groups = groups[count:]
        if self.tokens:
            return worth + self.groups * _tokens(groups) // self.tokens
        return worth + len(groups)

    def shortfall(self, groups: Sequence[ScoredGroup]) -> str:
        """Returns the part of a batch that these groups fill, for messages."""
        if self.tokens:
            return f"{_tokens(groups)} of {self.tokens} tokens"
        return f"{len(groups)} of {self.groups}"

    def too_few(self, rejected: int) -> str:
        """Explains why there are too few after ``rejected`` rejected groups, for messages."""
        if self.tokens and rejected < self.groups:
            return (
                f"{self.groups} groups, rlax.rollouts.groups_per_step, are expected to hold "
                f"rlax.batches.tokens = {self.tokens}: raise the one or lower the other"
            )
        return "The task is too easy, too hard, or the filters are too strict"

    def _complete(self, groups: Sequence[ScoredGroup]) -> int | None:
        """Returns the number of first groups that complete a batch; perhaps more than fit."""
        tokens = sequences = positions = 0
        for count, group in enumerate(groups, 1):
            # Added up only where it decides: this is asked whenever a group is scored.
            tokens += _tokens([group]) if self.tokens else 0
            sizes_n = sizes([group])
            sequences += len(sizes_n)
            positions += sum(sizes_n) if self.sequences_per_row > 1 else 0
            enough = tokens >= self.tokens if self.tokens else count >= self.groups
            full = sequences > self.rows * self.sequences_per_row
            if enough or full or positions > self.rows * self.length:
                return count
        return None

    def _fits(self, groups: Sequence[ScoredGroup]) -> bool:
        found = place(sizes(groups), self.rows, self.length, self.sequences_per_row)
        return found is not None


def _tokens(groups: Sequence[ScoredGroup]) -> int:
    return sum(episode.tokens for group in groups for episode in group.episodes)
