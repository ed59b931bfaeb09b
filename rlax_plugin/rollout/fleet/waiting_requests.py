"""Requests that wait for a worker, and the order in which they are sent."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from rlax_plugin.rollout.fleet.tickets import Ticket


class WaitingRequests:
    """A queue: the request that is to be sent next is the first one.

    Requests that are issued again come before all others. Then comes the request with the lowest
    version that may generate it, because its group trains first. Of those that share a version,
    later turns come first, because their groups have begun; then the request with the longest
    expected samples, so that no long sample is left when all others have ended (LPT, Graham 1969;
    StreamRL, https://arxiv.org/abs/2504.15930). Equals keep the order in which they were issued.
    """

    # Of all queues together: a ticket keeps its number, and may come back to another queue.
    _numbers = itertools.count()

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, float, int, Ticket]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Ticket]:
        """Yields the tickets in no particular order."""
        return (ticket for *_, ticket in self._heap)

    def add(self, ticket: Ticket) -> None:
        """Puts a ticket in its place; one that is put back gets the place that it had."""
        if ticket.number < 0:
            ticket.number = next(self._numbers)
        request = ticket.request
        expected = math.inf if request.key.sample is not None else ticket.expected_tokens
        place = (ticket.losses == 0, request.min_version, -expected, ticket.number, ticket)
        heapq.heappush(self._heap, place)

    def take(self) -> Ticket:
        """Removes and returns the first ticket."""
        return heapq.heappop(self._heap)[-1]
