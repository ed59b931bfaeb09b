"""Watches the progress of requests on their worker, as its heartbeats report it.

A request may take any time while it makes progress: it may wait for a slot, for weights, or for a
swap of weights. It expires once it has stood still for ``rlax.deadlines.group_s``. As a worker may
say that a request progresses for ever, it expires, too, if it takes much longer than its tokens may
take at the pace of the answers that did come; the time begins again when tokens arrive. A worker
that is slower than the others is judged by its own pace, which such a request shows, too: it is
allowed to be ``_SLACK`` times as slow as they are, and no more unless it answers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rlax_plugin.base.types import Attempt
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto

_SLACK = 8.0
"""Times the mean seconds a token of answers that the longest request of a worker may take.

Twice, because requests wait for as many again as the worker has slots; the rest, because a decode
step takes longer in full slots, and a prompt may be longer than others.
"""
_PAUSES = 3  # of ``group_s``, during a request: compilations, other requests that go first, ...
_MOST_ANSWERS = 64

_MOST_BUSY = 10_000  # times that a worker has had requests, in one step


@dataclass(slots=True, eq=False)
class _Watched:
    """A request that was sent.

    Attributes:
      moves: count of moves in the newest heartbeat; -1: no heartbeat yet; None: it had none.
      still_s: seconds for which heartbeats have reported the same.
      tokens: longest sample that it may have; ``needs``: oldest weights that may begin it.
      sent_s: time of ``time.perf_counter`` at which it was sent.
      open_s: seconds since then, or since its last tokens; ``spared_s``: those of loading weights.
      limit_s: that ``open_s`` has exceeded; 0: none.
    """

    on_expiry: Callable[[float], None]
    tokens: int
    needs: int
    sent_s: float
    moves: int | None = -1
    still_s: float = 0.0
    open_s: float = 0.0
    spared_s: float = 0.0
    limit_s: float = 0.0
    expired: bool = False


class Answers:
    """The pace of the last answers, from when a request was sent to its end."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, int]] = deque(maxlen=_MOST_ANSWERS)

    def note(self, seconds: float, tokens: int) -> None:
        """Takes the seconds of an answer, and the number of tokens of its longest sample."""
        self._last.append((seconds, tokens))

    @property
    def token_s(self) -> float | None:
        """Seconds a token; None: there was no answer."""
        tokens = sum(count for _, count in self._last)
        return sum(seconds for seconds, _ in self._last) / tokens if tokens else None


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
      weights_s: longest time that loading weights may add to a request.
      answers: of all workers; a worker without answers has their pace.
    """

    def __init__(
        self,
        group_s: float,
        heartbeat_s: float,
        weights_s: float = math.inf,
        answers: Answers | None = None,
    ):
        self._group_s, self._most_s, self._weights_s = group_s, 2 * heartbeat_s, weights_s
        self._own, self._all = Answers(), answers or Answers()
        self._at_least_s = 0.0  # a token, as requests show that it answered too late or not at all
        self._watched: dict[Attempt, _Watched] = {}
        self._busy: deque[tuple[float, float]] = deque(maxlen=_MOST_BUSY)
        self._busy_since_s = 0.0  # if it has requests

    def watch(
        self,
        attempt: Attempt,
        on_expiry: Callable[[float], None],
        *,
        tokens: int = 0,
        needs: int = 0,
    ) -> None:
        """Watches a request that is about to be sent.

        Args:
          on_expiry: called once, with the seconds for which it has stood still.
          tokens: longest sample that it may have.
          needs: oldest weights that may begin it.
        """
        now_s = time.perf_counter()
        if not self._watched:
            self._busy_since_s = now_s
        self._watched[attempt] = _Watched(on_expiry, tokens, needs, now_s)

    def came(self, attempt: Attempt) -> None:
        """Notes that new tokens of a request have arrived."""
        if (one := self._watched.get(attempt)) is not None:
            one.open_s = 0.0

    def answered(self, attempt: Attempt, tokens: int) -> None:
        """Notes that a request was answered, before it is forgotten.

        Args:
          tokens: new tokens of its longest sample.
        """
        if (one := self._watched.get(attempt)) is not None and tokens:
            for answers in (self._own, self._all):
                answers.note(time.perf_counter() - one.sent_s, tokens)

    def answered_late(self, attempt: Attempt) -> None:
        """Notes that a request was answered that had expired, before it is forgotten."""
        if (one := self._watched.get(attempt)) is not None:
            self._took(time.perf_counter() - one.sent_s, one)

    def _took(self, at_least_s: float, one: _Watched) -> None:
        """Learns from a request that took so long, of whose tokens the number is not known."""
        if one.tokens:
            self._at_least_s = max(self._at_least_s, at_least_s / one.tokens)

    def overdue(self, attempt: Attempt) -> tuple[float, float] | None:
        """Returns the seconds that a request took and may take; None: it has not taken longer."""
        one = self._watched.get(attempt)
        return (one.open_s, one.limit_s) if one is not None and one.limit_s else None

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

    def heard(
        self,
        moves: Mapping[Attempt, int],
        elapsed_s: float,
        *,
        version: int = 0,
        loading: bool = False,
    ) -> None:
        """Takes the progress of the worker's open requests from a heartbeat.

        Args:
          elapsed_s: since the heartbeat before.
          version: weights that the worker holds.
          loading: True if it says that it loads others.
        """
        counted_s, limit_s = min(elapsed_s, self._most_s), self._limit_s()
        for attempt, one in list(self._watched.items()):
            if (loading or version < one.needs) and one.spared_s < self._weights_s:
                one.spared_s += counted_s
            else:
                one.open_s += counted_s
            if (now := moves.get(attempt)) != one.moves:
                one.moves, one.still_s = now, 0.0
            else:
                one.still_s += counted_s
            if one.expired or (one.still_s <= self._group_s and one.open_s <= limit_s):
                continue
            one.expired = True
            if one.still_s <= self._group_s:
                one.limit_s = limit_s
                self._took(one.open_s, one)
            one.on_expiry(one.still_s)

    def _limit_s(self) -> float:
        """Returns the longest time that any open request may take; infinite: it is not known."""
        if (all_s := self._all.token_s) is None:
            return math.inf
        # Not more: one that never answers would be given more and more time.
        at_least_s = min(self._at_least_s, _SLACK * all_s)
        token_s = max(all_s, self._own.token_s or 0.0, at_least_s)
        longest = max((one.tokens for one in self._watched.values()), default=0)
        return _PAUSES * self._group_s + _SLACK * longest * token_s
