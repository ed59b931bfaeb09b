"""Chooses the groups that move from a slow worker to idle slots of a faster one.

Two attempts never race: with other weights or another engine they would be different samples, and
training on the one that ends first would prefer short answers. For the same reason no group gets
new samples because its worker is slow. A moved group continues from the tokens that its worker has
reported last; or it begins again where this gives the same tokens, with the same seeds, weights and
engine. Where neither is possible, it stays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rlax_plugin.base.types import Request
from rlax_plugin.rollout.fleet.choosing_worker import goes_on, unfailed
from rlax_plugin.rollout.fleet.tickets import Call, Ticket, trusted
from rlax_plugin.rollout.fleet.worker import Worker

_FASTER = 1.5  # least ratio of speeds: figures are rough, and a move costs a prefill
_SOONER = 1.25  # least ratio of the times that the group still takes
_MOST_MOVES = 3  # of one group; speeds may change, but no group is to be moved for ever


def to_move(
    calls: Iterable[Call],
    ready: Sequence[Worker],
    again: Callable[[Ticket], Request],
    newest: int,
) -> Iterator[tuple[Call, Ticket, Worker, Request]]:
    """Yields calls with a group to be moved, its next worker and its next attempt.

    The groups that will end last come first. A group stays until its worker has shown how fast it
    is now: a slow one could not show that it has become faster. The caller moves each group before
    it takes the next one.

    Args:
      calls: that are open.
      ready: workers that take groups of any version.
      again: makes the next attempt at a group, with the tokens that are kept.
      newest: published weight version.
    """
    idle = [w for w in ready if w.assigned < w.slots]
    fastest = max([w.speed for w in idle], default=0.0)
    slow = {w for w in ready if w.tokens_per_s and w.requests and w.speed * _FASTER <= fastest}
    if not slow:
        return
    idle.sort(key=lambda w: -w.speed)
    late = [
        (_left_s(ticket, call.worker), call, ticket)
        for call in calls
        if call.worker in slow
        for ticket in call.open.values()
        if _movable(ticket) and ticket.sent_s < call.worker.measured_s
    ]
    # Of those that end at about the same time, the one that trains first.
    for left_s, call, ticket in sorted(late, key=lambda one: (-round(one[0], 1), one[2].number)):
        request = again(ticket)
        for worker in idle:
            if worker.slots - worker.assigned < len(request.seeds) or not unfailed(worker, ticket):
                continue
            kept = _kept(ticket, request, call.worker, worker, newest)
            if kept is None or call.worker.speed * _FASTER > worker.speed:
                continue
            tokens = _length(ticket, call.worker) - kept
            if tokens / _tokens_per_s(worker, call.worker) * _SOONER < left_s:
                yield call, ticket, worker, request
                break


def _movable(ticket: Ticket) -> bool:
    request = ticket.request
    return (
        request.key.purpose == "train"
        and request.exactly is None
        and not ticket.done.done()
        and ticket.moves < _MOST_MOVES
        and trusted(ticket.partials_workers)
    )


def _kept(
    ticket: Ticket, request: Request, before: Worker, worker: Worker, newest: int
) -> int | None:
    """Returns the tokens that each unfinished sample keeps at a worker; None if it must stay.

    Args:
      request: the next attempt.
      before: the worker that has it now.
    """
    if request.resume and goes_on(worker, ticket.partials_workers):
        if worker.version < request.needs_version:
            return None  # it would wait for weights
        return min((len(s.tokens) for s in request.resume if s.finish is None), default=0)
    # Both begin it with the newest version: with no older one, and there is no newer one.
    same_version = newest == ticket.sent_version == max(worker.version, request.min_version)
    same_engine = _engine(before) == _engine(worker) and worker.capabilities.seeded
    return 0 if same_version and same_engine and not ticket.request.resume else None


def _engine(worker: Worker) -> object:
    """Returns what tells the engines of two workers apart: all that they declare but sizes."""
    return dataclasses.replace(worker.capabilities, slots=1, context_tokens=0)


def _length(ticket: Ticket, worker: Worker) -> float:
    """Returns the number of tokens that the samples of a group are expected to have."""
    most, expected = ticket.request.sampling.max_new_tokens, ticket.expected_tokens
    begun = (time.monotonic() - ticket.sent_s) * worker.tokens_per_s
    return expected if begun < expected else most  # longer than expected: it may have any length


def _left_s(ticket: Ticket, worker: Worker) -> float:
    """Returns the seconds that a group still takes at its worker, if it has not waited there."""
    begun_s = time.monotonic() - ticket.sent_s
    return _length(ticket, worker) / worker.tokens_per_s - begun_s


def _tokens_per_s(worker: Worker, measured: Worker) -> float:
    """Returns a worker's speed; where it is not measured, the median, which another one knows."""
    return worker.tokens_per_s or measured.tokens_per_s / measured.speed
