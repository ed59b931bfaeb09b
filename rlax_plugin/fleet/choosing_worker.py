"""Chooses the worker for a request, and finds the requests that no worker can take."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlax_plugin.fleet.fleet import Worker
from rlax_plugin.fleet.tickets import Ticket


def sequence_tokens(ticket: Ticket) -> int:
    """Returns the most tokens that one sequence of a request can have, with its context."""
    request = ticket.request
    return len(request.context) + request.sampling.max_new_tokens


def takes(worker: Worker, ticket: Ticket) -> bool:
    """True if a request's sequences fit into the worker's longest context."""
    return not 0 < worker.capabilities.context_tokens < sequence_tokens(ticket)


def goes_on(worker: Worker, ticket: Ticket) -> bool:
    """True if a worker can continue samples of other workers, with the same side channels."""
    has, before = worker.capabilities, ticket.resume_workers
    return has.resumes and all(one.capabilities.side == has.side for one in before)


def choose(ticket: Ticket, ready: list[Worker]) -> Worker | None:
    """Returns the worker that gets the request; None if no suitable worker has room."""
    request = ticket.request
    size, tokens = len(request.seeds), sequence_tokens(ticket)
    free = [w for w in ready if not w.assigned or w.assigned + size <= 2 * w.capabilities.slots]
    able = [w for w in free if not 0 < w.capabilities.context_tokens < tokens]
    if ticket.failed_on and any(_unfailed(w, ticket) for w in ready):
        able = [w for w in able if _unfailed(w, ticket)]
    if not able:
        return None
    needs_version = request.needs_version
    able = [w for w in able if w.version >= needs_version] or able
    if request.resume:
        able = [w for w in able if goes_on(w, ticket)] or able
    # The least loaded one, by share of its slots: equal work for unequal machines.
    return min(able, key=lambda w: w.assigned / w.capabilities.slots)


def _unfailed(worker: Worker, ticket: Ticket) -> bool:
    """True if a worker can take a request, and has not failed at it."""
    return takes(worker, ticket) and worker.identity not in ticket.failed_on


def without_worker(
    waiting: Iterable[Ticket], workers: Collection[Worker], longest: int
) -> list[Ticket]:
    """Returns the waiting requests that no ready worker can take.

    Args:
      longest: no request has more ``sequence_tokens``. If some worker takes as many, the requests
        are not looked at.
    """
    ready = [worker for worker in workers if worker.ready]
    if any(not 0 < worker.capabilities.context_tokens < longest for worker in ready):
        return []
    return [t for t in waiting if not t.done.done() and not any(takes(w, t) for w in ready)]


def wrong_everywhere(
    rejected: Iterable[Ticket], worker: Worker, members: Collection[Worker]
) -> list[Ticket]:
    """Returns the rejected requests that count as invalid, so no other worker has to confirm it.

    Every worker rejects an invalid request; a single worker may be faulty or malicious.
    """
    others = [one for one in members if one.identity != worker.identity]
    return [
        ticket
        for ticket in rejected
        if ticket.failed_on - {worker.identity}
        or not any(one.serves(ticket.request.exactly) and takes(one, ticket) for one in others)
    ]


def missing_worker(waiting: Collection[Ticket], workers: Collection[Worker]) -> str:
    """Describes the missing worker that requests wait for, for messages."""
    longest = max((sequence_tokens(ticket) for ticket in waiting), default=0)
    limits = [worker.capabilities.context_tokens for worker in workers]
    if longest and any(limits):
        return (
            f"a rollout worker whose engine takes {longest} tokens (those that are there take at "
            f"most {max(limits)}), for which {len(waiting)} groups wait,"
        )
    return f"the return of a rollout worker, for which {len(waiting)} groups wait,"
