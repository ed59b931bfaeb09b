"""Groups on their way: what was sent to whom, and what is known of each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlax_plugin.rollouts.fleet import Worker
from rlax_plugin.rollouts.progress import Key
from rlax_plugin.types import GroupRequest, Rollout


class Answer(NamedTuple):
    """A group that is generated.

    Attributes:
      request: as it was answered; its attempt counts.
      rollouts: in sample order; one that several workers have generated names them all, ``a+b``.
      workers: all that have generated a part of it, lost ones too. A worker's part is void once it
        is not trusted any more.
    """

    request: GroupRequest
    rollouts: list[Rollout]
    workers: tuple[Worker, ...]


@dataclass(slots=True, eq=False)
class Ticket:
    """A group on its way.

    Attributes:
      resume_workers: the workers that have generated ``request.resume``.
      partials: what is generated of it so far, as far as it is known.
      partials_workers: the workers that have generated them.
      failed_on: identities of the workers that failed at it.
      failures: how often a worker failed at it, or was lost before it held the version it needs.
      losses: how often it was issued again, for whatever reason, by this process.
      exactly: the only version that it may be generated with; None: any that is new enough.
    """

    request: GroupRequest
    done: asyncio.Future[Answer]
    exactly: int | None = None
    resume_workers: tuple[Worker, ...] = ()
    partials: tuple[Rollout, ...] = ()
    partials_workers: tuple[Worker, ...] = ()
    failed_on: set[tuple[str, str]] = field(default_factory=set)
    failures: int = 0
    losses: int = 0

    @property
    def key(self) -> Key:
        return self.request.group_id, self.request.attempt

    def forget_distrusted(self) -> None:
        """Starts afresh if a worker that is not trusted has generated a part of what is resumed."""
        if not trusted(self.resume_workers):
            self.request, self.resume_workers = dataclasses.replace(self.request, resume=()), ()
        if not trusted(self.partials_workers):
            self.partials, self.partials_workers = self.request.resume, self.resume_workers


@dataclass(slots=True, eq=False)
class Call:
    """One call of a worker.

    Attributes:
      open: group id -> its ticket, until it is answered or has expired.
      expired: group id -> what was asked, until it is answered late.
    """

    worker: Worker
    open: dict[int, Ticket]
    expired: dict[int, GroupRequest] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


def trusted(workers: Iterable[Worker]) -> bool:
    """Whether all of them are."""
    return all(worker.trusted for worker in workers)


def tokens(rollouts: Iterable[Rollout]) -> int:
    """Tokens of all samples."""
    return sum(len(r.tokens) for r in rollouts)


def fail(tickets: Iterable[Ticket], error: BaseException) -> None:
    """Ends the groups that are still waited for."""
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_exception(error)
