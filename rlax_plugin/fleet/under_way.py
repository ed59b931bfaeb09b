"""The requests under way: which of them have taken longest, and where each one is."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rlax_plugin.fleet.fleet import Worker
from rlax_plugin.fleet.tickets import Call, Ticket
from rlax_plugin.types import Key


class Under(NamedTuple):
    """A request under way.

    Attributes:
      since: Unix time at which it was issued.
      worker: that has it; None: it waits for one.
      still_s: seconds for which its worker has reported no progress of it.
      unknown: True if its worker says that it does not have it.
    """

    key: Key
    since: float
    worker: Worker | None
    still_s: float
    unknown: bool = False


class UnderWay:
    """A view of the dispatcher's requests; all methods run on its event loop.

    Args:
      calls: that are open.
      waiting: queues of requests without a worker.
    """

    def __init__(self, calls: Iterable[Call], waiting: Iterable[Iterable[Ticket]]):
        self._calls, self._waiting = calls, waiting

    def _all(self) -> Iterator[Under]:
        for queue in self._waiting:
            for ticket in queue:
                if not ticket.done.done():
                    yield Under(ticket.request.key, ticket.since, None, 0.0)
        for call in self._calls:
            for key, ticket in call.open.items():
                progress, attempt = call.worker.progress, ticket.attempt
                still_s, unknown = progress.still_s(attempt), progress.unknown(attempt)
                yield Under(key, ticket.since, call.worker, still_s, unknown)

    def slowest(self, most: int) -> list[Under]:
        """Returns the requests that have stood still longest; the oldest of equals first."""
        return heapq.nsmallest(most, self._all(), key=lambda one: (-one.still_s, one.since))
