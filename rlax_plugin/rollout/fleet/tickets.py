"""Requests on their way: which worker has each, and the samples known so far."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlax_plugin.base.types import Attempt, Key, Request, Sampled
from rlax_plugin.rollout.fleet.fleet import Worker
from rlax_plugin.rollout.fleet.replies import Growing


class Completed(NamedTuple):
    """The samples generated for a request.

    Attributes:
      request: the attempt that was answered.
      samples: one per seed, in order.
      workers: all that have generated a part of it, lost ones too. A worker's part is void once it
        is not trusted any more.
    """

    request: Request
    samples: tuple[Sampled, ...]
    workers: tuple[Worker, ...]


class GivenUp(Exception):
    """Raised for a request that was ended early, because no part of it could train.

    Attributes:
      tokens: generated so far, of each sample that was not finished.
    """

    def __init__(self, tokens: tuple[int, ...]):
        super().__init__(f"{len(tokens)} samples were not generated to their end")
        self.tokens = tokens


@dataclass(slots=True, eq=False)
class Ticket:
    """A request on its way.

    Attributes:
      resume_workers: the workers that have generated ``request.resume``.
      partials: the newest samples known, some unfinished.
      partials_workers: the workers that have generated them.
      failed_on: identities of the workers that failed at it.
      failures: times a worker failed at it, or was lost before it held the version it needs.
      losses: times it was issued again by this process, for any reason.
      expected_tokens: mean length that its samples are expected to have; 0: unknown.
      moves: times it was moved to a faster worker.
      sent_s: time of ``time.monotonic`` at which it was last sent.
      sent_version: the oldest version that it can have begun with at its worker.
      number: its place among the requests that came to its queue; -1: it has not been there.
      since: Unix time at which this process issued it first.
    """

    request: Request
    done: asyncio.Future[Completed]
    since: float = field(default_factory=time.time)
    resume_workers: tuple[Worker, ...] = ()
    partials: Growing = field(default_factory=Growing)
    partials_workers: tuple[Worker, ...] = ()
    failed_on: set[tuple[str, str]] = field(default_factory=set)
    failures: int = 0
    losses: int = 0
    expected_tokens: float = 0.0
    moves: int = 0
    sent_s: float = 0.0
    sent_version: int = -1
    number: int = -1

    @property
    def attempt(self) -> Attempt:
        return self.request.key, self.request.attempt

    def forget_distrusted(self) -> None:
        """Forgets resumed samples and partials to which a distrusted worker has contributed."""
        if not trusted(self.resume_workers):
            self.request, self.resume_workers = dataclasses.replace(self.request, resume=()), ()
        if not trusted(self.partials_workers):
            self.partials = Growing(self.request.resume)
            self.partials_workers = self.resume_workers

    def renew(self, request: Request) -> None:
        """Replaces its request; the new one continues from its ``resume``, or from the prompt."""
        self.request, self.partials = request, Growing(request.resume)
        if not request.resume:
            self.partials_workers = ()
        self.resume_workers = self.partials_workers

    def start_afresh(self) -> None:
        """Forgets its samples, because the next worker cannot continue them."""
        if self.request.resume:
            self.request = dataclasses.replace(self.request, resume=())
        self.partials, self.partials_workers, self.resume_workers = Growing(), (), ()


@dataclass(slots=True, eq=False)
class Call:
    """One call of a worker.

    Attributes:
      open: the ticket of each request, until it is answered or has expired.
      expired: the expired requests, until they are answered late.
      told: the samples that the worker has sent so far, which its next message continues.
      asked: requests that the worker is to give up, cancelled or moved ones.
      oldest: the oldest usable version in the last order to give up older requests.
    """

    worker: Worker
    open: dict[Key, Ticket]
    expired: dict[Key, Request] = field(default_factory=dict)
    told: dict[Key, Growing] = field(default_factory=dict)
    asked: set[Key] = field(default_factory=set)
    oldest: int = 0
    task: asyncio.Task[None] | None = None


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


def trusted(workers: Iterable[Worker]) -> bool:
    """True if all of these workers are trusted."""
    return all(worker.trusted for worker in workers)


def tokens(samples: Iterable[Sampled]) -> int:
    """Returns the number of tokens of all samples."""
    return sum(len(s.tokens) for s in samples)


def fail(tickets: Iterable[Ticket], error: BaseException) -> None:
    """Ends the requests that are still open with an error."""
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_exception(error)
