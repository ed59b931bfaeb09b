"""Sends groups to workers and issues them again when a worker fails: the only retry there is."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from rlax_plugin.config import Deadlines
from rlax_plugin.controller.fleet import Fleet, Worker
from rlax_plugin.errors import DeadlineError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import GroupRequest, Rollout
from rlax_plugin.wire import describe, reply_from_proto, request_to_proto

MAX_ATTEMPTS = 20
"""Workers that come and go are ordinary; a group that loses this many of them is not."""

MAX_FAILURES = 3
"""Times a worker that is alive may fail at one group, or not finish it in time."""
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_ALIVE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT)

Answer = tuple[GroupRequest, list[Rollout]]
"""The request as it was answered (its attempt counts), and its rollouts in sample order."""


@dataclass(slots=True)
class _Ticket:
    request: GroupRequest
    done: asyncio.Future[Answer]
    partials: tuple[Rollout, ...] = ()  # what is drawn of it so far, as far as it is known
    failures: int = 0


class Dispatcher:
    """Assigns waiting groups to workers with room, as many per call as there are at that moment.

    Groups wait in issue order; a group that is issued again goes to the front. A worker is given
    at most twice its slots, so that it always has a backlog and never hoards. A group that is
    issued again takes along what its worker had reported of it.

    Args:
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
    ):
        self._fleet = fleet
        self._deadlines = deadlines
        self._refresh = refresh
        self._on_reissued = on_reissued
        self._waiting: deque[_Ticket] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._nobody: asyncio.TimerHandle | None = None  # runs while groups wait for any worker
        self.reissued = 0
        self.tokens_resumed = 0

    def submit(self, request: GroupRequest) -> asyncio.Future[Answer]:
        """Queues a group; the future ends with its answer."""
        ticket = _Ticket(request, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self.wake()
        return ticket.done

    def wake(self) -> None:
        """Assigns what waits, once all that is runnable now has run: calls carry many groups."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._scheduled = False
        ready = [w for w in self._fleet.workers.values() if w.ready]
        self._watch_for_nobody(bool(self._waiting) and not ready)
        batches: dict[str, list[_Ticket]] = {}
        while self._waiting and ready:
            ticket = self._waiting[0]
            if ticket.done.done():  # cancelled meanwhile
                self._waiting.popleft()
                continue
            # The least loaded worker, by share of its slots: equal work for unequal machines.
            worker = min(ready, key=lambda w: w.assigned / w.slots)
            size = len(ticket.request.seeds)
            if worker.assigned and worker.assigned + size > 2 * worker.slots:
                break
            self._waiting.popleft()
            worker.assigned += size
            batches.setdefault(worker.name, []).append(ticket)
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
        waiting, self._waiting = self._waiting, deque()
        what = f"the return of a rollout worker, for which {len(waiting)} groups wait,"
        _fail(waiting, DeadlineError(what, self._deadlines.startup_s, "rlax.deadlines.startup_s"))

    async def _call(self, worker: Worker, tickets: list[_Ticket]) -> None:
        open_tickets = {t.request.group_id: t for t in tickets}
        error = "the worker closed the call before it had answered"
        its_fault = True
        # The deadline grows with the backlog that this very call creates.
        waves = 1 + worker.assigned // worker.slots
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
            error, worker.trusted = str(failure), False
            self._fleet.lose(worker, error)
        finally:
            for ticket in open_tickets.values():
                worker.assigned -= len(ticket.request.seeds)
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
        rollouts = reply_from_proto(reply, worker.name, ticket.request.seeds)
        if any(r.finish_reason == "cancelled" for r in rollouts):
            if _tokens(rollouts) > _tokens(ticket.partials):
                ticket.partials = tuple(rollouts)
            return
        del open_tickets[reply.group_id]
        worker.assigned -= len(ticket.request.seeds)
        if not ticket.done.done():
            ticket.done.set_result((ticket.request, rollouts))
        self.wake()

    def _issue_again(
        self, worker: Worker, tickets: list[_Ticket], error: str, its_fault: bool
    ) -> None:
        for ticket in reversed(tickets):
            if ticket.done.done():
                continue
            ticket.failures += its_fault
            if ticket.failures >= MAX_FAILURES or ticket.request.attempt >= MAX_ATTEMPTS:
                failure = WorkerError(
                    f"group {ticket.request.group_id} failed {ticket.request.attempt} times, "
                    f"the last time on {worker.name}: {error}"
                )
                _fail([ticket], failure)
                continue
            # Of a worker that is not trusted, what it reported is not either.
            resume = ticket.partials if worker.trusted else ticket.request.resume
            ticket.request = self._refresh(
                dataclasses.replace(
                    ticket.request, attempt=ticket.request.attempt + 1, resume=resume
                )
            )
            ticket.partials = ticket.request.resume
            self.reissued += 1
            self.tokens_resumed += _tokens(ticket.partials)
            self._waiting.appendleft(ticket)
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
        for ticket in self._waiting:
            ticket.done.cancel()
        self._waiting.clear()


def _tokens(rollouts: Iterable[Rollout]) -> int:
    return sum(len(r.tokens) for r in rollouts)


def _fail(tickets: Iterable[_Ticket], error: BaseException) -> None:
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_exception(error)


async def wait_for_worker(fleet: Fleet, ready: asyncio.Event, startup_s: float) -> None:
    """Returns once a worker holds weights.

    Raises:
      DeadlineError: none came in time.
    """
    try:
        await asyncio.wait_for(ready.wait(), startup_s)
    except TimeoutError:
        names = ", ".join(sorted(fleet.workers)) or "none"
        raise DeadlineError(
            f"the first rollout worker to become ready (registered: {names})",
            startup_s,
            "rlax.deadlines.startup_s",
        ) from None
