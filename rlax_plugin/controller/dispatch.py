"""Sends groups to workers and issues them again when a worker fails: the only retry there is."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
import numpy as np

from rlax_plugin.config import Deadlines
from rlax_plugin.controller.fleet import Fleet, Worker
from rlax_plugin.errors import DeadlineError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import GroupRequest, Rollout
from rlax_plugin.wire import describe, reply_from_proto, request_to_proto

MAX_ATTEMPTS = 20
"""Workers that come and go are ordinary; a group that loses this many of them is not."""

MAX_FAILURES = 3
"""Times a worker that is alive may fail at one group, or not finish it in time; also workers that
may be lost before they hold the one version that a group needs."""
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_ALIVE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT)


class Answer(NamedTuple):
    """A group that is drawn.

    Attributes:
      request: as it was answered; its attempt counts.
      rollouts: in sample order; one that several workers have drawn names them all, ``a+b``.
      workers: all that have drawn a part of it, lost ones too. What one has drawn is void once it
        is not trusted any more.
    """

    request: GroupRequest
    rollouts: list[Rollout]
    workers: tuple[Worker, ...]


@dataclass(slots=True, eq=False)
class _Ticket:
    """A group on its way.

    Attributes:
      drew_resume: the workers that have drawn ``request.resume``.
      partials: what is drawn of it so far, as far as it is known.
      drew_partials: the workers that have drawn them.
      failed_on: identities of the workers that failed at it.
      failures: how often a worker failed at it, or was lost before it held the version it needs.
      losses: how often it was issued again, for whatever reason, by this process.
      exactly: the only version that it may be drawn with; None: any that is new enough.
    """

    request: GroupRequest
    done: asyncio.Future[Answer]
    exactly: int | None = None
    drew_resume: tuple[Worker, ...] = ()
    partials: tuple[Rollout, ...] = ()
    drew_partials: tuple[Worker, ...] = ()
    failed_on: set[tuple[str, str]] = field(default_factory=set)
    failures: int = 0
    losses: int = 0

    def forget_distrusted(self) -> None:
        """Starts afresh if a worker that is not trusted has drawn a part of what is resumed."""
        if not _trusted(self.drew_resume):
            self.request, self.drew_resume = dataclasses.replace(self.request, resume=()), ()
        if not _trusted(self.drew_partials):
            self.partials, self.drew_partials = self.request.resume, self.drew_resume


class Dispatcher:
    """Assigns waiting groups to workers with room, as many per call as there are at that moment.

    Groups wait in issue order; a group that is issued again goes to the front. A worker is given
    at most twice its slots, so that it always has a backlog and never hoards. A group that is
    issued again takes along what its worker had reported of it, and goes to a worker that has not
    failed at it if there is one. Groups that need exactly one version wait in a queue of their own
    for the worker that keeps it, see ``Fleet.pin``.

    Args:
      deterministic: workers draw one group at a time, so that a call takes as long as all of them.
      refresh: given a request as it would be issued again (the next attempt, ``resume`` the newest
        partial rollouts known, if any), returns the one to send.
      on_reissued: called with each request that is issued again, as it will be sent, and why.

    Attributes:
      reissued: how often a group was issued again.
      tokens_resumed: tokens that were kept in doing so.
    """

    def __init__(
        self,
        fleet: Fleet,
        deadlines: Deadlines,
        refresh: Callable[[GroupRequest], GroupRequest],
        on_reissued: Callable[[GroupRequest, str], None] = lambda request, reason: None,
        *,
        deterministic: bool = False,
    ):
        self._fleet = fleet
        self._deadlines = deadlines
        self._refresh = refresh
        self._on_reissued = on_reissued
        self._deterministic = deterministic
        self._waiting: defaultdict[int | None, deque[_Ticket]] = defaultdict(deque)  # by exactly
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._nobody: asyncio.TimerHandle | None = None  # runs while groups wait for any worker
        self.reissued = 0
        self.tokens_resumed = 0

    def submit(
        self, request: GroupRequest, *, exactly: int | None = None
    ) -> asyncio.Future[Answer]:
        """Queues a group; the future ends with its answer.

        Args:
          exactly: the version that all of it must be drawn with, by a worker that keeps it.
        """
        ticket = _Ticket(request, asyncio.get_running_loop().create_future(), exactly)
        self._waiting[exactly].append(ticket)
        self.wake()
        return ticket.done

    def lost(self, worker: Worker, reason: str) -> None:
        """Notes that a worker is gone.

        One after the other may be lost because they cannot load the version that they are to keep:
        then nobody can, and whoever waits for it hears so.
        """
        if worker.keep >= 0 and worker.kept != worker.keep:
            waiting = [t for t in self._waiting.get(worker.keep, ()) if not t.done.done()]
            for ticket in waiting:
                ticket.failures += 1
            failure = WorkerError(
                f"version {worker.keep} cannot be kept: {MAX_FAILURES} workers were lost before "
                f"they held it, the last one {worker.name}: {reason}"
            )
            _fail((t for t in waiting if t.failures >= MAX_FAILURES), failure)
        self.wake()

    def wake(self) -> None:
        """Assigns what waits, once all that is runnable now has run: calls carry many groups."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._scheduled = False
        workers = self._fleet.workers.values()
        for exactly, queue in list(self._waiting.items()):
            self._assign_from(queue, [w for w in workers if w.serves(exactly)])
            if all(ticket.done.done() for ticket in queue):
                del self._waiting[exactly]
        self._watch_for_nobody(bool(self._waiting) and not any(w.ready for w in workers))

    def _assign_from(self, queue: deque[_Ticket], ready: list[Worker]) -> None:
        batches: dict[str, list[_Ticket]] = {}
        held_back: list[_Ticket] = []  # they wait for a worker that has not failed at them
        while queue and ready:
            ticket = queue.popleft()
            if ticket.done.done():  # cancelled meanwhile
                continue
            worker = _choose(ticket, ready)
            if worker is None:
                held_back.append(ticket)
                if ticket.failed_on:
                    continue
                break
            worker.assign(len(ticket.request.seeds))
            ticket.forget_distrusted()
            self.tokens_resumed += _tokens(ticket.request.resume)
            batches.setdefault(worker.name, []).append(ticket)
        queue.extendleft(reversed(held_back))
        for name, tickets in batches.items():
            call = asyncio.ensure_future(self._call(self._fleet.workers[name], tickets))
            self._calls.add(call)
            call.add_done_callback(functools.partial(self._ended, tickets))

    def _ended(self, tickets: list[_Ticket], call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            _fail(tickets, error)  # nothing that was foreseen, and so nothing to try again

    def _watch_for_nobody(self, nobody: bool) -> None:
        if not nobody and self._nobody is not None:
            self._nobody.cancel()
            self._nobody = None
        elif nobody and self._nobody is None:
            deadline_s = self._deadlines.startup_s
            self._nobody = asyncio.get_running_loop().call_later(deadline_s, self._nobody_came)

    def _nobody_came(self) -> None:
        self._nobody = None
        waiting = [ticket for queue in self._waiting.values() for ticket in queue]
        self._waiting.clear()
        what = f"the return of a rollout worker, for which {len(waiting)} groups wait,"
        _fail(waiting, DeadlineError(what, self._deadlines.startup_s, "rlax.deadlines.startup_s"))

    async def _call(self, worker: Worker, tickets: list[_Ticket]) -> None:
        open_tickets = {t.request.group_id: t for t in tickets}
        error = "the worker closed the call before it had answered"
        its_fault = True
        # The deadline grows with the backlog that this very call creates.
        waves = worker.groups if self._deterministic else 1 + worker.assigned // worker.slots
        stream = worker.stub.Generate(
            pb.GenerateRequest(groups=[request_to_proto(t.request) for t in tickets]),
            timeout=self._deadlines.group_s * waves,
        )
        try:
            async for reply in stream:
                if not worker.trusted:  # its channel is being closed: what is still read is void
                    error, its_fault = worker.lost, False
                    break
                self._take(reply, worker, open_tickets)
        except grpc.aio.AioRpcError as failure:
            error = worker.lost or describe(failure)
            if failure.code() == grpc.StatusCode.INVALID_ARGUMENT:
                # No other worker would take it either.
                _fail(open_tickets.values(), WorkerError(f"{worker.name} refused: {error}"))
            its_fault = failure.code() not in _GONE
            # One that drains ends its calls and then leaves; others of its calls are still read.
            if failure.code() not in _ALIVE and not worker.draining:
                self._fleet.lose(worker, error)  # if it lives, its next heartbeat registers it anew
        except asyncio.CancelledError:
            # Closing a lost worker's channel cancels its calls; only our own end is passed on.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            error, its_fault = worker.lost or "the call was cancelled", False
        except WorkerError as failure:
            error = str(failure)
            self._fleet.distrust(worker, error)
        finally:
            for ticket in open_tickets.values():
                worker.unassign(len(ticket.request.seeds))
        if open_tickets:
            self._issue_again(worker, list(open_tickets.values()), error, its_fault)

    def _take(self, reply: pb.GroupReply, worker: Worker, open_tickets: dict[int, _Ticket]) -> None:
        """Ends the group's ticket, or notes how far the group has come.

        Raises:
          WorkerError: the reply is nonsense.
        """
        ticket = open_tickets.get(reply.group_id)
        if ticket is None:
            raise WorkerError(f"{worker.name} answered group {reply.group_id} unasked")
        request = ticket.request
        rollouts = reply_from_proto(reply, worker.name, request.seeds)
        # A parameter server of its own may tell a worker of a version a moment before it tells us.
        newest = self._fleet.latest_version() + 1
        # What nobody waits for any more may well be drawn with other weights by now.
        check_reply(rollouts, request, newest, None if ticket.done.done() else ticket.exactly)
        rollouts = [
            dataclasses.replace(r, worker=_contributors(before, worker.name))
            for r, before in itertools.zip_longest(rollouts, request.resume)
        ]
        workers = tuple(dict.fromkeys((*ticket.drew_resume, worker)))
        if any(r.finish_reason == "cancelled" for r in rollouts):
            if _tokens(rollouts) > _tokens(ticket.partials):
                ticket.partials, ticket.drew_partials = tuple(rollouts), workers
            return
        del open_tickets[reply.group_id]
        worker.unassign(len(request.seeds))
        if not _trusted(workers):
            self._issue_again(worker, [ticket], "a worker that drew a part is not trusted", False)
        elif not ticket.done.done():
            ticket.done.set_result(Answer(request, rollouts, workers))
        self.wake()

    def _issue_again(
        self, worker: Worker, tickets: list[_Ticket], error: str, its_fault: bool
    ) -> None:
        for ticket in reversed(tickets):
            if ticket.done.done():
                continue
            ticket.losses += 1
            if its_fault:
                ticket.failures += 1
                ticket.failed_on.add(worker.identity)
            if ticket.failures >= MAX_FAILURES or ticket.losses >= MAX_ATTEMPTS:
                failure = WorkerError(
                    f"group {ticket.request.group_id} failed {ticket.losses} times, "
                    f"the last time on {worker.name}: {error}"
                )
                _fail([ticket], failure)
                continue
            ticket.forget_distrusted()
            again = dataclasses.replace(
                ticket.request, attempt=ticket.request.attempt + 1, resume=ticket.partials
            )
            # The flow knows which version training needs; that of a measurement stays.
            ticket.request = self._refresh(again) if ticket.exactly is None else again
            ticket.partials = ticket.request.resume
            if not ticket.partials:
                ticket.drew_partials = ()
            ticket.drew_resume = ticket.drew_partials
            self.reissued += 1
            self._waiting[ticket.exactly].appendleft(ticket)
            self._on_reissued(ticket.request, error)
        # A worker that refuses connections would be asked again at once; let the fleet look first.
        delay_s = min(0.5, self._deadlines.heartbeat_s / 4)
        asyncio.get_running_loop().call_later(delay_s, self.wake)

    async def close(self) -> None:
        """Cancels every open call and every waiting group."""
        self._watch_for_nobody(False)
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for queue in self._waiting.values():
            for ticket in queue:
                ticket.done.cancel()
        self._waiting.clear()


def _choose(ticket: _Ticket, ready: list[Worker]) -> Worker | None:
    """The worker to ask; None if those that should be have no room."""
    size = len(ticket.request.seeds)
    may = [w for w in ready if w.identity not in ticket.failed_on] or ready
    free = [w for w in may if not w.assigned or w.assigned + size <= 2 * w.slots]
    able = [w for w in free if w.version >= ticket.request.min_version] or free
    # The least loaded one, by share of its slots: equal work for unequal machines.
    return min(able, key=lambda w: w.assigned / w.slots, default=None)


def check_reply(
    rollouts: Iterable[Rollout],
    request: GroupRequest,
    newest_version: int,
    exactly: int | None = None,
) -> None:
    """Holds an answer, or a report on the way, against what was asked.

    Args:
      newest_version: that the trainer has published.
      exactly: the only version that it may be drawn with; None: any between those two.

    Raises:
      WorkerError: names the sample and what it contradicts.
    """
    most = request.sampling.max_new_tokens
    for r, before in itertools.zip_longest(rollouts, request.resume):
        begun = 0 if before is None else len(before.tokens)
        drawn_now = r.versions[begun:]
        problems = {
            f"has {len(r.tokens)} tokens, {most} were asked for": len(r.tokens) > most,
            f"is drawn with versions above {newest_version}, the newest": (
                r.versions > newest_version
            ).any(),
            f"is drawn with versions below {request.min_version}, the oldest that was asked for": (
                drawn_now < request.min_version
            ).any(),
            f"is drawn with other versions than {exactly}, which it was to be": exactly is not None
            and (r.versions != exactly).any(),
            "does not go on from what was to be resumed": before is not None
            and not _goes_on(r, before),
        }
        for problem, found in problems.items():
            if found:
                raise WorkerError(f"{r.worker}: group {r.group_id} sample {r.index} {problem}")


def _goes_on(rollout: Rollout, before: Rollout) -> bool:
    """Whether a sample is what was resumed, continued unless that was complete."""
    begun = len(before.tokens)
    if before.finish_reason != "cancelled" and (
        len(rollout.tokens) != begun or rollout.finish_reason != before.finish_reason
    ):
        return False
    return all(
        np.array_equal(getattr(rollout, name)[:begun], getattr(before, name))
        for name in ("tokens", "logprob_full", "logprob_sampled", "versions")
    )


def _contributors(before: Rollout | None, worker: str) -> str:
    """Names of the workers that have drawn a sample, in order."""
    if before is None or not len(before.tokens):
        return worker
    if before.finish_reason != "cancelled" or worker in before.workers:
        return before.worker
    return f"{before.worker}+{worker}"


def _trusted(workers: Iterable[Worker]) -> bool:
    return all(worker.trusted for worker in workers)


def _tokens(rollouts: Iterable[Rollout]) -> int:
    return sum(len(r.tokens) for r in rollouts)


def _fail(tickets: Iterable[_Ticket], error: BaseException) -> None:
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_exception(error)
