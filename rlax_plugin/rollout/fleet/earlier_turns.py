"""The workers that generated the earlier turns of episodes, and may have kept their contexts."""

from __future__ import annotations

from rlax_plugin.base.types import Key

_MOST = 65_536  # episodes


class EarlierTurns:
    """Remembers the worker of each episode's newest turn, once requests for later turns come.

    It only affects the choice of a worker, so it need not survive a restart, and what it has
    forgotten costs no more than a prefill.
    """

    def __init__(self) -> None:
        self._several_turns = False
        self._workers: dict[Key, str] = {}  # by the key of the episode's first turn

    def requested(self, key: Key) -> None:
        """Notes a request."""
        self._several_turns = self._several_turns or key.turn > 0

    def generated(self, key: Key, worker: str) -> None:
        """Notes the name of the worker that has generated a turn, or the first turns of a group."""
        if not self._several_turns:
            return
        episode = key._replace(turn=0)
        self._workers.pop(episode, None)
        self._workers[episode] = worker
        if len(self._workers) > _MOST:
            del self._workers[next(iter(self._workers))]

    def worker_before(self, key: Key) -> str | None:
        """Returns the name of the worker that generated the turn before; None if it is unknown."""
        if key.turn == 0:
            return None
        episode = key._replace(turn=0)
        first = episode._replace(sample=None)  # of all samples of the group
        return self._workers.get(episode) or self._workers.get(first)
