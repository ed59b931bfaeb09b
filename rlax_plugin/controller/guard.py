"""Watches how many groups the filters keep: ``rlax.curation.guard``.

What decides is the order in which groups are scored, which deterministic mode fixes. Groups of
recorded batches are not counted again: like those for ``max_refill``, the counts of a process that
takes a run over begin at 0.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable

from rlax_plugin.config import Guard
from rlax_plugin.controller.refill import counted
from rlax_plugin.errors import TrainingError

_RECOVERED = 1.5  # times ``warn``: a share that wavers around ``warn`` gives one message


class KeptGuard:
    """Counts kept and rejected groups among the last ones.

    Args:
      note: shows one line to people.
    """

    def __init__(self, config: Guard, note: Callable[[str], None]):
        self._config, self._note = config, note
        self._last: deque[str | None] = deque(maxlen=config.window)  # why rejected; None: kept
        self._warned = False
        self._stop, self._warn = self._least(config.stop), self._least(config.warn)
        self._recovered = self._least(min(1.0, _RECOVERED * config.warn))

    def _least(self, share: float) -> int:
        """The smallest number of groups that is this share; not one more by a rounding error."""
        return math.ceil(share * self._config.window - 1e-6)

    def scored(self, rejected: str | None) -> None:
        """Takes the next scored group. Nothing is decided before there are ``window`` of them.

        Args:
          rejected: why; None: it was accepted.

        Raises:
          TrainingError: too few were kept.
        """
        self._last.append(rejected)
        config = self._config
        if len(self._last) < config.window:
            return
        kept = self._last.count(None)
        if kept < self._stop:
            raise TrainingError(
                f"{self._told(kept)} rlax.curation.guard.stop = {config.stop:g} ends such a run. "
                "Lower it, or raise rlax.curation.guard.window, and the same command resumes the "
                "run. To keep more groups, start a new run with other rlax.curation.filters, "
                "rlax.curation.sampler or prompts; --from lets it start from these weights"
            )
        if kept < self._warn:
            if not self._warned:
                limit = f"rlax.curation.guard.warn = {config.warn:g}"
                self._note(f"warning: {self._told(kept)} This is less than {limit}")
            self._warned = True
        elif kept >= self._recovered:
            self._warned = False

    def _told(self, kept: int) -> str:
        reasons = Counter(reason for reason in self._last if reason is not None)
        return (
            f"of the last {len(self._last)} groups that were scored, the filters kept {kept} "
            f"(rejected: {counted(reasons)})."
        )
