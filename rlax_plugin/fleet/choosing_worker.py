"""Chooses the worker for a request."""

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
    size = len(ticket.request.seeds)
    may = [w for w in ready if takes(w, ticket)]
    may = [w for w in may if w.identity not in ticket.failed_on] or may
    free = [w for w in may if w.assigned < w.slots or w.assigned + size <= 2 * w.slots]
    able = [w for w in free if w.version >= ticket.request.needs_version] or free
    if ticket.request.resume:
        able = [w for w in able if goes_on(w, ticket)] or able
    # The least loaded one, by share of its slots: equal work for unequal machines.
    return min(able, key=lambda w: w.assigned / w.slots, default=None)


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
