"""Chooses the accepted groups of a batch, by a number of groups or of tokens, and by its layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config import RlaxSection
from rlax_plugin.run.state.ready_groups import UNLIMITED, ReadyGroups, Sums
from rlax_plugin.training.objective.placing import place
from rlax_plugin.training.objective.shared_prompts import Branch, branches, place_shared


class Due(NamedTuple):
    """The first accepted groups, which complete a batch; perhaps more than fit.

    Attributes:
      groups: their ids, in issue order.
      sizes: of each group, the positions of its sequences.
      branches: of each group, its sequences that may share a prompt; () if prompts are not shared.
    """

    groups: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    branches: tuple[tuple[Branch, ...], ...] = ()


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
      rows, length, sequences_per_row: see ``placing.place``.
      shared_prompts: True if prompts are shared, see ``shared_prompts.place_shared``.
    """

    groups: int
    tokens: int
    rows: int
    length: int
    sequences_per_row: int
    shared_prompts: bool = False

    @classmethod
    def of(cls, section: RlaxSection) -> BatchRule:
        """Returns the rule of a config."""
        groups = section.rollouts.groups_per_step
        # Which samples have a row is decided when the groups of the batch are known.
        selects = section.curation.selection is not None
        return cls(
            groups=groups,
            tokens=section.batches.tokens,
            rows=groups * section.rollouts.group_size if selects else section.batch_rows,
            length=section.row_tokens,
            sequences_per_row=section.batches.sequences_per_row,
            shared_prompts=section.batches.shared_prompts,
        )

    def due(self, ready: ReadyGroups, before: int | None = None) -> Due | None:
        """Returns the first groups that are due for a batch; None while they do not complete one.

        Args:
          ready: accepted groups.
          before: id of the oldest group that is not scored yet; None: all are.
        """
        if (last := self.last_due(ready, before)) is None:
            return None
        return self.of_groups(ready, [group_id for group_id in ready if group_id <= last])

    def of_groups(self, ready: ReadyGroups, due: Iterable[int]) -> Due:
        """Returns some of the accepted groups, in issue order, for ``fitting``."""
        due = sorted(due)
        shared = tuple(branches(ready[one]) for one in due) if self.shared_prompts else ()
        return Due(tuple(due), tuple(map(ready.sizes, due)), shared)

    def last_due(self, ready: ReadyGroups, before: int | None = None) -> int | None:
        """Returns the last of the groups that ``due`` returns, in less time."""
        found = ready.reaching(self._limits)
        if found is None or (before is not None and found[0] >= before):
            return None
        return found[0]

    def fitting(self, due: Due) -> int:
        """Returns how many of the groups that are due can be laid out, from the first. Any thread.

        Raises:
          TrainingError: not even one group can be laid out.
        """
        for count in range(len(due.groups), 0, -1):
            if self._holds(due, count):
                return count
        # A config whose batch cannot hold any one group is rejected.
        raise TrainingError(
            f"group {due.groups[0]} with samples of {list(due.sizes[0])} positions does not fit "
            f"into {self.rows} rows of {self.length}"
        )

    def _holds(self, due: Due, count: int) -> bool:
        """True if the first ``count`` groups that are due can be laid out."""
        rows = self.rows, self.length, self.sequences_per_row
        if self.shared_prompts:
            return place_shared(due.branches[:count], *rows) is not None
        sizes = list(chain.from_iterable(due.sizes[:count]))
        return place(sizes, *rows) is not None

    def completes(self, ready: ReadyGroups) -> bool:
        """True if some of the groups are due, or would be if all older ones were scored."""
        return ready.reaching(self._limits) is not None

    def worth(self, ready: ReadyGroups) -> int:
        """Converts groups to a count by which ``self.groups`` make a batch.

        Groups that do not complete a batch count as less than ``self.groups``.
        """
        worth, before = 0, Sums()
        while (found := ready.reaching(before.plus(self._limits))) is not None:
            worth += self.groups
            _, before = found
        left = ready.total.minus(before)
        return worth + (self.groups * left.tokens // self.tokens if self.tokens else left.groups)

    def shortfall(self, ready: ReadyGroups) -> str:
        """Returns the part of a batch that these groups fill, for messages."""
        if self.tokens:
            return f"{ready.total.tokens} of {self.tokens} tokens"
        return f"{len(ready)} of {self.groups}"

    def too_few(self, rejected: int) -> str:
        """Explains why there are too few after ``rejected`` rejected groups, for messages."""
        if self.tokens and rejected < self.groups:
            return (
                f"{self.groups} groups, rlax.rollouts.groups_per_step, are expected to hold "
                f"rlax.batches.tokens = {self.tokens}: raise the one or lower the other"
            )
        return "The task is too easy, too hard, or the filters are too strict"

    @property
    def _limits(self) -> Sums:
        """The sums over its groups with which a batch is complete; perhaps more than fit."""
        # With shared prompts, fewer positions are taken than the sequences have.
        packed = self.sequences_per_row > 1 and not self.shared_prompts
        return Sums(
            groups=UNLIMITED if self.tokens else self.groups,
            tokens=self.tokens or UNLIMITED,
            sequences=self.rows * self.sequences_per_row + 1,
            positions=self.rows * self.length + 1 if packed else UNLIMITED,
        )
