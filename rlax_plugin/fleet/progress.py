"""Watches the progress of requests on their worker, as its heartbeats report it.

A request may take any time while it makes progress: it may wait for a slot, for weights, or for a
swap of weights. It expires once it has stood still for ``rlax.deadlines.group_s``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import key_from_proto
from rlax_plugin.types import Attempt

_MOST_BUSY = 10_000  # times that a worker has had requests, in one step


@dataclass(slots=True, eq=False)
class _Watched:
    """A request that was sent.

    Attributes:
      moves: count of moves in the newest heartbeat; -1: no heartbeat yet; None: it had none.
      still_s: seconds for which heartbeats have reported the same.
    """

    on_expiry: Callable[[float], None]
    moves: int | None = -1
    still_s: float = 0.0
    expired: bool = False


def unfinished_of(told: Iterable[pb.Progress]) -> dict[Attempt, int]:
    """Returns a heartbeat's numbers of unfinished samples, of the requests that it has some for.

    Raises:
      ValueError: a key in it is malformed, or a number is negative.
    """
    found = {
        (key_from_proto(one.key), one.attempt): one.unfinished
        for one in told
        if one.HasField("unfinished")
    }
    if min(found.values(), default=0) < 0:
        raise ValueError(f"{min(found.values())} unfinished samples")
    return found


def moves_of(told: Iterable[pb.Progress]) -> dict[Attempt, int]:
    """Returns a heartbeat's progress in the form that ``Progress.heard`` takes.

    Raises:
      ValueError: a key in it is malformed.
    """
    return {(key_from_proto(one.key), one.attempt): one.moves for one in told}


class Progress:
    """The requests that one worker has been sent and has not answered.

    Between two heartbeats at most two intervals are counted: while no heartbeat arrives the state
    is unknown, because the worker, the network or the controller's own process may be paused. A
    change is seen after it happened, so a request has always stood still for longer than counted.

    Args:
      group_s: longest time that a request may stand still.
      heartbeat_s: between two heartbeats.
    """

    def __init__(self, group_s: float, heartbeat_s: float):
        self._group_s, self._most_s = group_s, 2 * heartbeat_s
        self._watched: dict[Attempt, _Watched] = {}
        self._busy: deque[tuple[float, float]] = deque(maxlen=_MOST_BUSY)
        self._busy_since_s = 0.0  # if it has requests

    def watch(self, attempt: Attempt, on_expiry: Callable[[float], None]) -> None:
        """Watches a request that is about to be sent.

        Args:
          on_expiry: called once, with the seconds for which it has stood still.
        """
        if not self._watched:
            self._busy_since_s = time.perf_counter()
        self._watched[attempt] = _Watched(on_expiry)

    def still_s(self, attempt: Attempt) -> float:
        """Returns the seconds for which a request has stood still; 0: it is not watched."""
        one = self._watched.get(attempt)
        return 0.0 if one is None else one.still_s

    def unknown(self, attempt: Attempt) -> bool:
        """True if the worker's newest heartbeat says that it does not have a watched request."""
        one = self._watched.get(attempt)
        return one is not None and one.moves is None

    def forget(self, attempt: Attempt) -> float:
        """Stops watching a request; returns the seconds for which it has stood still."""
        one = self._watched.pop(attempt, None)
        if one is not None and not self._watched:
            self._busy.append((self._busy_since_s, time.perf_counter()))
        return 0.0 if one is None else one.still_s

    def take_busy(self) -> list[tuple[float, float]]:
        """Returns the times since the last call in which the worker had requests.

        Times are of ``time.perf_counter``. If it has some now, the last time ends now.
        """
        found = list(self._busy)
        self._busy.clear()
        if self._watched:
            now_s = time.perf_counter()
            found.append((self._busy_since_s, now_s))
            self._busy_since_s = now_s
        return found

    def heard(self, moves: Mapping[Attempt, int], elapsed_s: float) -> None:
        """Takes the progress of the worker's open requests from a heartbeat.

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
