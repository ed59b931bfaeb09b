"""Fails requests that no worker can take, once they have waited for one for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from rlax_plugin.config import Deadlines
from rlax_plugin.errors import DeadlineError
from rlax_plugin.fleet.choosing_worker import sequence_tokens, takes
from rlax_plugin.fleet.deadlines import Pace
from rlax_plugin.fleet.tickets import Ticket, fail
from rlax_plugin.fleet.worker import Worker


class MissingWorker:
    """Waits for ``startup_s`` while requests have no worker that can take them.

    Args:
      waiting: queues of requests without a worker.
      pace: knows the time that a worker needs to start, for messages.
    """

    def __init__(
        self,
        waiting: Iterable[Iterable[Ticket]],
        workers: Mapping[str, Worker],
        deadlines: Deadlines,
        pace: Pace | None,
    ):
        self._waiting, self._workers = waiting, workers
        self._deadlines, self._pace = deadlines, pace
        self._longest = 0  # tokens of a sequence, of all requests so far
        self._timer: asyncio.TimerHandle | None = None  # runs while there are such requests

    def _requests(self) -> list[Ticket]:
        waiting = (ticket for queue in self._waiting for ticket in queue)
        return without_worker(waiting, self._workers.values(), self._longest)

    def watch(self, ticket: Ticket) -> None:
        """Takes each new request."""
        self._longest = max(self._longest, sequence_tokens(ticket))

    def look(self) -> None:
        """Starts or ends the wait; called whenever requests or workers have changed."""
        if not self._requests():
            self.close()
        elif self._timer is None:
            deadline_s = self._deadlines.startup_s
            self._timer = asyncio.get_running_loop().call_later(deadline_s, self._expired)

    def close(self) -> None:
        """Ends the wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        waiting, deadline_s = self._requests(), self._deadlines.startup_s
        needed_s = self._pace and self._pace.needed_s("startup_s")
        what = missing_worker(waiting, self._workers.values())
        fail(waiting, DeadlineError(what, deadline_s, "rlax.deadlines.startup_s", needed_s))


def without_worker(
    waiting: Iterable[Ticket], workers: Collection[Worker], longest: int
) -> list[Ticket]:
    """Returns the waiting requests that no ready worker can take.

    Args:
      longest: no request has more ``sequence_tokens``. If some worker takes as many, the requests
        are not looked at.
    """
    if any(not 0 < w.capabilities.context_tokens < longest for w in workers if w.ready):
        return []
    ready = [worker for worker in workers if worker.ready]
    return [t for t in waiting if not t.done.done() and not any(takes(w, t) for w in ready)]


def missing_worker(waiting: Collection[Ticket], workers: Collection[Worker]) -> str:
    """Describes the missing worker that requests wait for, for messages."""
    longest = max((sequence_tokens(ticket) for ticket in waiting), default=0)
    limits = [worker.capabilities.context_tokens for worker in workers]
    what = "the return of a rollout worker"
    if limits and all(0 < limit < longest for limit in limits):
        what = (
            f"a rollout worker whose engine takes {longest} tokens (those that are there take at "
            f"most {max(limits)})"
        )
    elif without := [worker.name for worker in workers if worker.version < 0]:
        what = (
            "a rollout worker that has loaded weights (there without them, each with a log that "
            f"says why: {', '.join(without)})"
        )
    return f"{what}, for which {len(waiting)} groups wait,"
