"""Chooses the worker for a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlax_plugin.rollout.fleet.fleet import Worker
from rlax_plugin.rollout.fleet.tickets import Ticket

_ROUNDS = 2  # of its slots that a worker is given: a backlog, but it leaves requests for others


def sequence_tokens(ticket: Ticket) -> int:
    """Returns the most tokens that one sequence of a request can have, with its context."""
    request = ticket.request
    return len(request.context) + request.sampling.max_new_tokens


def takes(worker: Worker, ticket: Ticket) -> bool:
    """True if a request's sequences fit into the worker's longest context."""
    return not 0 < worker.capabilities.context_tokens < sequence_tokens(ticket)


def goes_on(worker: Worker, before: Iterable[Worker]) -> bool:
    """True if a worker can continue samples of other workers, with the same side channels."""
    has = worker.capabilities
    return has.resumes and all(one.capabilities.side == has.side for one in before)


def choose(
    ticket: Ticket, ready: list[Worker], earlier: str | None = None, rest: float = 0.0
) -> Worker | None:
    """Returns the worker that gets the request; None if no suitable worker has room.

    The time in which the median worker generates a group is the unit of ``rest``. A slow worker
    gets no group that it would end after all others have ended.

    Args:
      earlier: name of the worker that generated the turn before, whose slots may have kept the
        context. It gets the request if it has an idle slot.
      rest: time in which the workers generate all that is under way or waits.
    """
    request = ticket.request
    size, tokens = len(request.seeds), sequence_tokens(ticket)
    fit = [w for w in ready if not 0 < w.capabilities.context_tokens < tokens]
    if ticket.failed_on and any(unfailed(w, ticket) for w in ready):
        fit = [w for w in fit if unfailed(w, ticket)]
    free = [w for w in fit if _has_room(w, size)]
    # Workers of half the median speed or more always get what they have room for: were figures
    # wrong, the run would be slower, but it would not stand still.
    latest = max(rest, _ROUNDS / min(1.0, max((w.speed for w in fit), default=1.0)))
    able = [w for w in free if _ends(w, size) <= latest]
    if not able:
        return None
    needs_version = request.needs_version
    able = [w for w in able if w.version >= needs_version] or able
    if request.resume:
        able = [w for w in able if goes_on(w, ticket.resume_workers)] or able
    idle = [w for w in able if w.assigned < w.capabilities.slots]
    if kept := [w for w in idle if w.name == earlier]:
        return kept[0]
    # Of those that end it at the same time, the least loaded one by share of its slots: equal work
    # for unequal machines.
    return min(able, key=lambda w: (_ends(w, size), w.assigned / w.capabilities.slots))


def _has_room(worker: Worker, size: int) -> bool:
    """True if a worker has idle slots, or at most twice its slots with ``size`` more samples."""
    slots = worker.capabilities.slots
    return worker.assigned < slots or worker.assigned + size <= _ROUNDS * slots


def _ends(worker: Worker, size: int) -> float:
    """Returns the time until a worker ends ``size`` more samples, as ``rest`` counts it."""
    rounds = (worker.assigned + size) / worker.capabilities.slots
    # An idle slot generates a group no faster when others are idle, too.
    return (rounds if worker.assigned >= worker.capabilities.slots else 1.0) / worker.speed


def unfailed(worker: Worker, ticket: Ticket) -> bool:
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
