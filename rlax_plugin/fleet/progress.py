"""Whether requests come further on their worker, as its heartbeats show it.

A request may take as long as it needs while it does: it may wait for a slot, for weights, or for a
swap of weights. It expires once it has stood still for ``rlax.deadlines.group_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import key_from_proto
from rlax_plugin.types import Attempt


@dataclass(slots=True, eq=False)
class _Watched:
    """A request that was sent.

    Attributes:
      moves: what the newest heartbeat told of it; -1: none was heard yet; None: it told nothing.
      still_s: for how long heartbeats have told the same.
    """

    on_expiry: Callable[[float], None]
    moves: int | None = -1
    still_s: float = 0.0
    expired: bool = False


def moves_of(told: Iterable[pb.Progress]) -> dict[Attempt, int]:
    """A heartbeat's progress, as ``Progress.heard`` takes it.

    Raises:
      ValueError: it is garbled.
    """
    return {(key_from_proto(one.key), one.attempt): one.moves for one in told}


class Progress:
    """The requests that one worker has been sent and has not answered.

    Time counts between two heartbeats, and at most two intervals of it: while heartbeats stay away
    nothing is known, be it that the worker, the network or this very process is paused. A change is
    seen after it happened, so that a request has always stood still for longer than is counted.

    Args:
      group_s: how long a request may stand still.
      heartbeat_s: between two heartbeats.
    """

    def __init__(self, group_s: float, heartbeat_s: float):
        self._group_s, self._most_s = group_s, 2 * heartbeat_s
        self._watched: dict[Attempt, _Watched] = {}

    def watch(self, attempt: Attempt, on_expiry: Callable[[float], None]) -> None:
        """Watches a request that is about to be sent.

        Args:
          on_expiry: called once, with the seconds for which it has stood still.
        """
        self._watched[attempt] = _Watched(on_expiry)

    def forget(self, attempt: Attempt) -> float:
        """Watches a request no more; returns for how long it has stood still by now."""
        one = self._watched.pop(attempt, None)
        return 0.0 if one is None else one.still_s

    def heard(self, moves: Mapping[Attempt, int], elapsed_s: float) -> None:
        """Takes what a heartbeat tells of the worker's open requests.

        Args:
          elapsed_s: since the heartbeat before.
        """
        for attempt, one in list(self._watched.items()):
            if (now := moves.get(attempt)) != one.moves:
                one.moves, one.still_s = now, 0.0
                continue
            one.still_s += min(elapsed_s, self._most_s)
            if one.still_s > self._group_s and not one.expired:
                one.expired = True
                one.on_expiry(one.still_s)
