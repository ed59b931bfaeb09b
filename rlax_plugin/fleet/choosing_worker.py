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


def choose(ticket: Ticket, ready: list[Worker], earlier: str | None = None) -> Worker | None:
    """Returns the worker that gets the request; None if no suitable worker has room.

    Args:
      earlier: name of the worker that generated the turn before, whose slots may have kept the
        context. It gets the request if it has an idle slot.
    """
    request = ticket.request
    size, tokens = len(request.seeds), sequence_tokens(ticket)
    free = [w for w in ready if _has_room(w, size)]
    able = [w for w in free if not 0 < w.capabilities.context_tokens < tokens]
    if ticket.failed_on and any(_unfailed(w, ticket) for w in ready):
        able = [w for w in able if _unfailed(w, ticket)]
    if not able:
        return None
    needs_version = request.needs_version
    able = [w for w in able if w.version >= needs_version] or able
    if request.resume:
        able = [w for w in able if goes_on(w, ticket)] or able
    idle = [w for w in able if w.assigned < w.capabilities.slots]
    if kept := [w for w in idle if w.name == earlier]:
        return kept[0]
    # The least loaded one, by share of its slots: equal work for unequal machines.
    return min(able, key=lambda w: w.assigned / w.capabilities.slots)


def _has_room(worker: Worker, size: int) -> bool:
    """True if a worker has idle slots, or at most twice its slots with ``size`` more samples."""
    slots = worker.capabilities.slots
    return worker.assigned < slots or worker.assigned + size <= 2 * slots


def _unfailed(worker: Worker, ticket: Ticket) -> bool:
    """True if a worker can take a request, and has not failed at it."""
    return takes(worker, ticket) and worker.identity not in ticket.failed_on


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
