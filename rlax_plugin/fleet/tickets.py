"""Requests on their way: what was sent to whom, and what is known of each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlax_plugin.fleet.fleet import Worker
from rlax_plugin.rpc.pieces import Arriving
from rlax_plugin.types import Attempt, Key, Request, Sampled


class Completed(NamedTuple):
    """What was generated for a request.

    Attributes:
      request: as it was answered; its attempt counts.
      samples: one per seed, in order.
      workers: all that have generated a part of it, lost ones too. A worker's part is void once it
        is not trusted any more.
    """

    request: Request
    samples: tuple[Sampled, ...]
    workers: tuple[Worker, ...]


class GivenUp(Exception):
    """A request was not generated to its end: nothing of it could train any more.

    Attributes:
      tokens: so far, of each sample that was not finished.
    """

    def __init__(self, tokens: tuple[int, ...]):
        super().__init__(f"{len(tokens)} samples were not generated to their end")
        self.tokens = tokens


@dataclass(slots=True, eq=False)
class Ticket:
    """A request on its way.

    Attributes:
      resume_workers: the workers that have generated ``request.resume``.
      partials: what is generated of it so far, as far as it is known.
      partials_workers: the workers that have generated them.
      failed_on: identities of the workers that failed at it.
      failures: how often a worker failed at it, or was lost before it held the version it needs.
      losses: how often it was issued again, for whatever reason, by this process.
    """

    request: Request
    done: asyncio.Future[Completed]
    resume_workers: tuple[Worker, ...] = ()
    partials: tuple[Sampled, ...] = ()
    partials_workers: tuple[Worker, ...] = ()
    failed_on: set[tuple[str, str]] = field(default_factory=set)
    failures: int = 0
    losses: int = 0

    @property
    def attempt(self) -> Attempt:
        return self.request.key, self.request.attempt

    def forget_distrusted(self) -> None:
        """Starts afresh if a worker that is not trusted has generated a part of what is resumed."""
        if not trusted(self.resume_workers):
            self.request, self.resume_workers = dataclasses.replace(self.request, resume=()), ()
        if not trusted(self.partials_workers):
            self.partials, self.partials_workers = self.request.resume, self.resume_workers

    def renew(self, request: Request) -> None:
        """Sends another request in its place, which goes on from what is known of it, or anew."""
        self.request, self.partials = request, request.resume
        if not self.partials:
            self.partials_workers = ()
        self.resume_workers = self.partials_workers

    def start_afresh(self) -> None:
        """Forgets what is generated of it: it goes to a worker that cannot go on from there."""
        if self.request.resume:
            self.request = dataclasses.replace(self.request, resume=())
        self.partials, self.partials_workers, self.resume_workers = (), (), ()


@dataclass(slots=True, eq=False)
class Call:
    """One call of a worker.

    Attributes:
      open: of each request, until it is answered or has expired.
      expired: what was asked, until it is answered late.
      told: what the worker has sent so far; what it sends next continues it.
      arriving: the reply that has not come whole.
      asked: requests that it was asked to give up.
      oldest: weights that training could still use when it was last asked to give older ones up.
    """

    worker: Worker
    open: dict[Key, Ticket]
    expired: dict[Key, Request] = field(default_factory=dict)
    told: dict[Key, tuple[Sampled, ...]] = field(default_factory=dict)
    arriving: Arriving = field(default_factory=Arriving)
    asked: set[Key] = field(default_factory=set)
    oldest: int = 0
    task: asyncio.Task[None] | None = None


def trusted(workers: Iterable[Worker]) -> bool:
    """Whether all of them are."""
    return all(worker.trusted for worker in workers)


def tokens(samples: Iterable[Sampled]) -> int:
    """Tokens of all samples."""
    return sum(len(s.tokens) for s in samples)


def fail(tickets: Iterable[Ticket], error: BaseException) -> None:
    """Ends the requests that are still waited for."""
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_exception(error)
