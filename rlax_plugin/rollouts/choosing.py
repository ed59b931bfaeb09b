"""Which worker gets a request."""

from __future__ import annotations

from rlax_plugin.rollouts.fleet import Worker
from rlax_plugin.rollouts.tickets import Ticket


def sequence_tokens(ticket: Ticket) -> int:
    """Of one of its sequences, at most."""
    request = ticket.request
    return len(request.context) + request.sampling.max_new_tokens


def takes(worker: Worker, ticket: Ticket) -> bool:
    """Whether a worker can generate the request at all."""
    return not 0 < worker.capabilities.context_tokens < sequence_tokens(ticket)


def goes_on(worker: Worker, ticket: Ticket) -> bool:
    """Whether a worker goes on behind tokens, and with the side channels that they have."""
    has, before = worker.capabilities, ticket.resume_workers
    return has.resumes and all(one.capabilities.side == has.side for one in before)


def choose(ticket: Ticket, ready: list[Worker]) -> Worker | None:
    """The worker to ask; None if those that should be have no room."""
    size = len(ticket.request.seeds)
    may = [w for w in ready if takes(w, ticket)]
    may = [w for w in may if w.identity not in ticket.failed_on] or may
    free = [w for w in may if not w.assigned or w.assigned + size <= 2 * w.slots]
    able = [w for w in free if w.version >= ticket.request.min_version] or free
    if ticket.request.resume:
        able = [w for w in able if goes_on(w, ticket)] or able
    # The least loaded one, by share of its slots: equal work for unequal machines.
    return min(able, key=lambda w: w.assigned / w.slots, default=None)
