"""Sends groups to workers and issues them again when a worker fails: the only retry there is."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from rlax_plugin.config import Deadlines
from rlax_plugin.controller.fleet import Fleet, Worker
from rlax_plugin.errors import DeadlineError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import GroupRequest, Rollout
from rlax_plugin.wire import describe, reply_from_proto, request_to_proto

MAX_ATTEMPTS = 20
"""A group that fails on this many workers is not bad luck: the run stops and says so."""


Answer = tuple[GroupRequest, list[Rollout]]
"""The request as it was answered (its attempt counts), and its rollouts in sample order."""


@dataclass(slots=True)
class _Ticket:
    request: GroupRequest
    done: asyncio.Future[Answer]
    last_error: str = ""


class Dispatcher:
    """Assigns waiting groups to workers with room, as many per call as there are at that moment.

    Groups wait in issue order; a group that is issued again goes to the front. A worker is given
    at most twice its slots, so that it always has a backlog and never hoards.
    """

    def __init__(self, fleet: Fleet, deadlines: Deadlines, refresh: Callable[[GroupRequest], int]):
        self._fleet = fleet
        self._deadlines = deadlines
        self._refresh = refresh  # min_version of a request that is issued again
        self._waiting: deque[_Ticket] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self.reissued = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

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
            call.add_done_callback(self._calls.discard)

    async def _call(self, worker: Worker, tickets: list[_Ticket]) -> None:
        open_tickets = {t.request.group_id: t for t in tickets}
        error = "the worker closed the call before it had answered"
        # The deadline grows with the backlog that this very call creates.
        waves = 1 + worker.assigned // worker.slots
        stream = worker.stub.Generate(
            pb.GenerateRequest(groups=[request_to_proto(t.request) for t in tickets]),
            timeout=self._deadlines.group_s * waves,
        )
        try:
            async for reply in stream:
                ticket = open_tickets.get(reply.group_id)
                if ticket is None:
                    raise WorkerError(f"{worker.name} answered group {reply.group_id} unasked")
                rollouts = reply_from_proto(reply, worker.name, ticket.request.seeds)
                del open_tickets[reply.group_id]
                worker.assigned -= len(ticket.request.seeds)
                if not ticket.done.done():
                    ticket.done.set_result((ticket.request, rollouts))
                self.wake()
        except grpc.aio.AioRpcError as failure:
            error = describe(failure)
            if failure.code() == grpc.StatusCode.UNAVAILABLE:
                self._fleet.lose(worker, error)  # if it lives, its next heartbeat registers it anew
        except asyncio.CancelledError:
            # Closing a lost worker's channel cancels its calls; only our own end is passed on.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            error = "the worker was lost"
        except WorkerError as failure:
            error = str(failure)
            self._fleet.lose(worker, error)
        finally:
            for ticket in open_tickets.values():
                worker.assigned -= len(ticket.request.seeds)
        if open_tickets:
            self._issue_again(worker, list(open_tickets.values()), error)

    def _issue_again(self, worker: Worker, tickets: list[_Ticket], error: str) -> None:
        for ticket in reversed(tickets):
            if ticket.done.done():
                continue
            ticket.last_error = f"{worker.name}: {error}"
            if ticket.request.attempt >= MAX_ATTEMPTS:
                ticket.done.set_exception(
                    WorkerError(
                        f"group {ticket.request.group_id} failed {MAX_ATTEMPTS} times, "
                        f"last on {ticket.last_error}"
                    )
                )
                continue
            ticket.request = dataclasses.replace(
                ticket.request,
                attempt=ticket.request.attempt + 1,
                min_version=self._refresh(ticket.request),
            )
            self.reissued += 1
            self._waiting.appendleft(ticket)
        # A worker that refuses connections would be asked again at once; let the fleet look first.
        delay_s = min(0.5, self._deadlines.heartbeat_s / 4)
        asyncio.get_running_loop().call_later(delay_s, self.wake)

    async def close(self) -> None:
        """Cancels every open call and every waiting group."""
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for ticket in self._waiting:
            ticket.done.cancel()
        self._waiting.clear()


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
