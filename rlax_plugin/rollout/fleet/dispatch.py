"""Sends requests to workers, and again when a worker fails: the only component that does.

It also ends generation at workers whose result is not used: cancelled, moved or too stale requests.
A worker decides which requests are too stale, because only it knows which weights each began with.
That costs at most one message per worker and step, and none if no request is affected. A worker
that does not answer is no failure: it then generates samples that are not used.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import DeadlineError, WorkerError
from rlax_plugin.base.tokens.stopping import Decode
from rlax_plugin.base.types import Request
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.backlog import Backlog
from rlax_plugin.rollout.fleet.choosing_worker import (
    choose,
    goes_on,
    sequence_tokens,
    takes,
    wrong_everywhere,
)
from rlax_plugin.rollout.fleet.deadlines import Pace
from rlax_plugin.rollout.fleet.earlier_turns import EarlierTurns
from rlax_plugin.rollout.fleet.fleet import Fleet, FleetListener, Worker
from rlax_plugin.rollout.fleet.links import CallError, Heard
from rlax_plugin.rollout.fleet.moving import to_move
from rlax_plugin.rollout.fleet.replies import take_report
from rlax_plugin.rollout.fleet.speeds import Speeds
from rlax_plugin.rollout.fleet.tickets import (
    Call,
    Completed,
    GivenUp,
    Ticket,
    Under,
    fail,
    tokens,
    trusted,
)
from rlax_plugin.rollout.fleet.waiting_requests import WaitingRequests

log = logging.getLogger("rlax.controller")

MAX_ATTEMPTS = 20
"""A request that loses this many workers fails; a few losses are normal."""

MAX_FAILURES = 3
"""Most failures of live workers at one group, missed deadlines included.

Also the most workers that may be lost before they hold the one version that a group needs."""

_OVERDUE = "overdue"  # the rule of a worker's ``suspicion``


class RequestRefresher:
    """May change requests that are issued again; by default they are sent unchanged."""

    def refreshed(self, request: Request) -> Request:
        """Returns the request to send.

        Args:
          request: the next attempt; ``resume`` holds the newest unfinished samples known, if any.
        """
        return request

    def reissued(self, request: Request, reason: str, ending: Ending) -> None:
        """Called with each request that is issued again, as it will be sent.

        Args:
          reason, ending: of the attempt before.
        """


class Dispatcher(FleetListener):
    """Assigns waiting requests to workers with room, as many as possible in one call.

    They wait in the order of ``WaitingRequests``. A worker gets requests while it has fewer
    unfinished samples than slots, and beyond that up to twice its slots, so that it has a backlog
    but leaves requests for others; a slow one gets less, see ``choose``. A request that is issued
    again takes along its worker's last report of it, and goes to a worker that has not failed at it
    if there is one. Requests that need exactly one version wait in a separate queue for the pinned
    worker, see ``Fleet.pin``.

    Args:
      refresher: may change requests that are issued again.
      pace: knows the time that a worker needs to start, for messages.
      decode: tokens to text; without it, the place of stop strings in samples is not checked.
      trained: returns the vocabulary size of the model that is trained; 0: not known.
      by_speed: True if slow workers get less, and their groups may move to idle slots of others,
        see ``moving``; False: all workers count as equal.
      continues: True if samples may be continued with newer weights by another worker; else what is
        unfinished is no part of an answer.

    Attributes:
      reissued: number of times a request was issued again.
      tokens_resumed: tokens that were kept when requests were issued again.
      late: answers to expired requests, which are ignored.
      backlog: the samples that are under way.
    """

    def __init__(
        self,
        fleet: Fleet,
        deadlines: Deadlines,
        refresher: RequestRefresher | None = None,
        pace: Pace | None = None,
        decode: Decode | None = None,
        trained: Callable[[], int] = lambda: 0,
        by_speed: bool = True,
        continues: bool = True,
    ):
        self._fleet, self._deadlines, self._decode = fleet, deadlines, decode
        self._trained, self._by_speed, self._continues = trained, by_speed, continues
        self._refresher = refresher or RequestRefresher()
        self._waiting = defaultdict[int | None, WaitingRequests](WaitingRequests)  # by exactly
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._pace, self._longest = pace, 0  # tokens of a sequence, of all requests so far
        self._no_worker: asyncio.TimerHandle | None = None  # while no worker can take a request
        self._oldest = 0  # version that can train
        self._looks = self._closed = False
        self._asking: set[asyncio.Task[None]] = set()  # workers to give requests up
        self._scheduled, self._seen_late, self.backlog = False, "", Backlog()
        self._earlier_turns = EarlierTurns()
        self._speeds = Speeds(fleet.workers)
        self.reissued = self.tokens_resumed = self.late = 0

    @property
    def vocabulary(self) -> int:
        """The trainer's vocabulary size, which token ids are below; 0: not known.

        Where the trainer does not know it, the smallest that any worker reported.
        """
        said = (worker.capabilities.vocabulary for worker in self._fleet.workers.values())
        return self._trained() or min((size for size in said if size), default=0)

    def submit(self, request: Request, expected_tokens: float = 0.0) -> asyncio.Future[Completed]:
        """Queues a request; the future ends with its answer. Cancelling it ends the generation."""
        done = asyncio.get_running_loop().create_future()
        ticket = Ticket(request, done, expected_tokens=expected_tokens)
        self._longest = max(self._longest, sequence_tokens(ticket))
        done.add_done_callback(lambda future: self._look_soon() if future.cancelled() else None)
        self.backlog.watch(len(request.seeds), ticket.done)
        self._earlier_turns.requested(request.key)
        self._waiting[request.exactly].add(ticket)
        self.wake()
        return ticket.done

    @property
    def waits_for_slots(self) -> bool:
        """True if requests of training wait for a worker with free slots."""
        return any(not ticket.done.done() for ticket in self._waiting.get(None, ()))

    def give_up_older(self, version: int) -> None:
        """Ends training requests begun with weights older than a version, as too stale to train.

        Requests begun with older weights fail with ``GivenUp``; the others wait for newer weights.
        """
        for ticket in self._waiting.get(None, ()):
            request = ticket.request
            if request.key.purpose == "train" and request.min_version < version:
                ticket.renew(self._refresher.refreshed(request))
        self._oldest = version
        self._look_soon()

    def slowest(self, most: int) -> list[Under]:
        """Returns the requests under way that have stood still longest; of equals the oldest."""
        return heapq.nsmallest(
            most, self._all_under_way(), key=lambda one: (-one.still_s, one.since)
        )

    def _all_under_way(self) -> Iterator[Under]:
        for ticket in self._tickets_waiting():
            yield Under(ticket.request.key, ticket.since, None, 0.0)
        for call in self._calls.values():
            for key, ticket in call.open.items():
                progress, attempt = call.worker.progress, ticket.attempt
                still_s, unknown = progress.still_s(attempt), progress.unknown(attempt)
                yield Under(key, ticket.since, call.worker, still_s, unknown)

    def _tickets_waiting(self) -> Iterator[Ticket]:
        return (t for queue in self._waiting.values() for t in queue if not t.done.done())

    def worker_ready(self, worker: Worker) -> None:
        self.wake()

    def worker_heard(self, worker: Worker) -> None:
        # It may have room for more, or new speeds show that groups should move.
        if (self._by_speed and self._speeds.heard(worker)) or self._waiting:
            self.wake()

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """Wakes the dispatcher; fails groups whose pinned version no worker can load.

        That is so after ``MAX_FAILURES`` workers were lost while loading the version.
        """
        if worker.keep >= 0 and worker.kept != worker.keep:
            waiting = [t for t in self._waiting.get(worker.keep, ()) if not t.done.done()]
            for ticket in waiting:
                ticket.failures += 1
            failure = WorkerError(
                f"no worker can load and keep version {worker.keep}: {MAX_FAILURES} workers were "
                f"lost while they tried, the last one {worker.name}: {reason}"
            )
            fail((t for t in waiting if t.failures >= MAX_FAILURES), failure)
        self.wake()

    def wake(self) -> None:
        """Assigns waiting requests once the loop's due callbacks have run: few calls with many."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._scheduled = False
        for exactly, queue in list(self._waiting.items()):
            self._assign_from(queue, self._fleet.serving(exactly))
            if all(ticket.done.done() for ticket in queue):
                del self._waiting[exactly]
        if self._by_speed and None not in self._waiting:
            self._move()
        self._look_for_worker()

    def _assign_from(self, queue: WaitingRequests, ready: list[Worker]) -> None:
        batches: dict[str, list[Ticket]] = {}
        held_back: list[Ticket] = []  # they wait for a worker that has not failed at them
        rest = _rest(queue, ready)
        while queue and ready:
            ticket = queue.take()
            if ticket.done.done():  # cancelled meanwhile
                continue
            earlier = self._earlier_turns.worker_before(ticket.request.key)
            worker = choose(ticket, ready, earlier, rest)
            if worker is None:
                held_back.append(ticket)
                if ticket.failed_on or not all(takes(w, ticket) for w in ready):
                    continue
                break
            ticket.forget_distrusted()
            self._give(ticket, worker)
            batches.setdefault(worker.name, []).append(ticket)
        for ticket in held_back:
            queue.add(ticket)
        self._begin(batches)

    def _give(self, ticket: Ticket, worker: Worker) -> None:
        """Counts a request that is about to be sent to a worker."""
        if not goes_on(worker, ticket.resume_workers):
            ticket.start_afresh()
        worker.assign(ticket.request)
        ticket.sent_s = worker.given_s
        ticket.sent_version = max(worker.version, ticket.request.needs_version)
        self.tokens_resumed += tokens(ticket.request.resume)

    def _move(self) -> None:
        """Moves the groups that will end last from slow workers to idle slots of others."""
        ready = [w for w in self._fleet.workers.values() if w.serves(None)]
        batches: dict[str, list[Ticket]] = {}
        moved: dict[str, list[Request]] = {}
        newest = self._fleet.newest.number
        calls = self._calls.values()
        for call, ticket, worker, request in to_move(calls, ready, self._again, newest):
            before = self._withdraw(call, ticket)
            call.asked.add(before.key)
            moved.setdefault(call.worker.name, []).append(before)
            ticket.moves += 1
            ticket.renew(request)
            self._give(ticket, worker)
            batches.setdefault(worker.name, []).append(ticket)
            reason = f"{worker.name} ends it sooner than {call.worker.name}, which is slow"
            self._note_again(ticket, reason, Ending.MOVED)
            self._give_up(call)
        for name, requests in moved.items():
            self._ask_to_give_up(self._fleet.workers[name], requests)
        self._begin(batches)

    def _begin(self, batches: Mapping[str, list[Ticket]]) -> None:
        for name, tickets in batches.items():
            self._open(Call(self._fleet.workers[name], {t.request.key: t for t in tickets}))

    def _open(self, call: Call) -> None:
        call.task = asyncio.ensure_future(self._run(call))
        self._calls[call.task] = call
        call.task.add_done_callback(functools.partial(self._ended, list(call.open.values())))

    def _ended(self, tickets: list[Ticket], task: asyncio.Task[None]) -> None:
        del self._calls[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(tickets, error)  # nothing that was foreseen, and so nothing to try again

    async def _run(self, call: Call) -> None:
        worker = call.worker
        error, its_fault = "the worker closed the call before it had answered", True
        for ticket in call.open.values():
            stands_still = functools.partial(self._stands_still, call, ticket)
            worker.progress.watch(
                ticket.attempt,
                stands_still,
                # Eight tokens of a context are read in the time of one new token, or faster.
                tokens=ticket.request.sampling.max_new_tokens + len(ticket.request.context) // 8,
                needs=ticket.request.needs_version,
            )
        requests = [ticket.request for ticket in call.open.values()]
        said = worker.link.generate(requests, worker.name, lambda: worker.capabilities.side)
        try:
            async with aclosing(said):
                async for heard in said:
                    if worker.fenced or not worker.trusted:
                        error, its_fault = worker.lost, False  # its link is closed: all is void
                        break
                    self._take(heard, call)
        except CallError as failure:
            error = worker.lost or str(failure)
            if rejected := failure.kind == "rejected":
                wrong, members = f"{worker.name} rejected a call: {error}", self._fleet.workers
                invalid = wrong_everywhere(call.open.values(), worker, members.values())
                fail(invalid, WorkerError(wrong))
            its_fault = failure.kind != "gone"
            # One that drains ends its calls and then leaves; others of its calls are still read.
            if not rejected and not worker.draining:
                self._fleet.fail(worker, error)  # if it lives, its next heartbeat registers it anew
        except asyncio.CancelledError:
            # Closing a lost worker's link cancels its calls, and so does the last group that
            # has expired; only our own end is passed on.
            if call.open and (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            error, its_fault = worker.lost or "the call was cancelled", False
        except WorkerError as failure:
            error = str(failure)
            self._fleet.distrust(worker, error)
        finally:
            for request in [*(t.request for t in call.open.values()), *call.expired.values()]:
                self._release(worker, request)
        unanswered = list(call.open.values())
        call.open.clear()  # none of them can expire any more
        if unanswered:
            self._issue_again(worker, unanswered, error, its_fault)

    @staticmethod
    def _release(worker: Worker, request: Request) -> float:
        """Takes a request off a worker; returns the longest seconds it stood still there."""
        worker.unassign(request)
        return worker.progress.forget((request.key, request.attempt))

    def _stands_still(self, call: Call, ticket: Ticket, still_s: float) -> None:
        # Not in the midst of a heartbeat: what fails here must end the run, not the heartbeat.
        asyncio.get_running_loop().call_soon(self._expire, call, ticket, still_s)

    def _expire(self, call: Call, ticket: Ticket, still_s: float) -> None:
        """Issues a request that has stood still again; the others of its call continue."""
        if call.open.get(ticket.request.key) is not ticket:
            return  # answered just now
        self._withdraw(call, ticket)
        if overdue := call.worker.progress.overdue(ticket.attempt):
            error = (
                f"no end after {overdue[0]:.3g} s, although progress was reported: at the pace of "
                f"other answers, and with pauses of rlax.deadlines.group_s = "
                f"{self._deadlines.group_s:g}, it takes at most {overdue[1]:.3g} s"
            )
            call.worker.suspicion[_OVERDUE] = f"{ticket.request.key} had {error}"
            ticket.failed_on.add(call.worker.identity)
        else:
            error = (
                f"no progress for {still_s:.3g} s, rlax.deadlines.group_s is "
                f"{self._deadlines.group_s:g}: if its engine is healthy, raise it{self._seen_late}"
            )
        # The pace is an estimate: three slow workers must not end the run.
        self._issue_again(call.worker, [ticket], error, its_fault=not overdue)
        self._give_up(call)

    @staticmethod
    def _withdraw(call: Call, ticket: Ticket) -> Request:
        """Takes a request from a call, whose late answer to it is ignored; returns it."""
        request = ticket.request
        del call.open[request.key]
        call.expired[request.key] = request
        call.told.pop(request.key, None)
        return request

    @staticmethod
    def _give_up(call: Call) -> None:
        """Ends a call whose other requests have all expired, so that the worker stops them."""
        if call.expired and not call.open and call.task is not None:
            call.task.cancel()

    def _late(self, call: Call, heard: Heard) -> None:
        """Counts an answer to an expired request, which another attempt answers."""
        key = heard.key
        if heard.unfinished:
            return  # it is yet to be answered
        request = call.expired.pop(key)
        overdue = call.worker.progress.overdue((key, request.attempt))
        if heard.given_up is None:
            call.worker.progress.answered_late((key, request.attempt))
        needed_s = self._release(call.worker, request)
        if heard.given_up is not None or key in call.asked:
            return
        self.late += 1
        if overdue:  # it never stood still
            log.warning("%s answered %s after all, too late", call.worker.name, key)
            return
        self._seen_late = f"; one late answer came after {needed_s:.3g} s without progress"
        message = (
            "%s answered %s after all, %.3g s without progress: too late for "
            "rlax.deadlines.group_s = %g"
        )
        log.warning(message, call.worker.name, key, needed_s, self._deadlines.group_s)

    def _take(self, heard: Heard, call: Call) -> None:
        """Ends the request's ticket, or notes its progress.

        Raises:
          WorkerError: the reply is invalid.
        """
        worker, key = call.worker, heard.key
        if (ticket := call.open.get(key)) is None:
            if key in call.expired:
                self._late(call, heard)
                return
            raise WorkerError(f"{worker.name} answered {key} once more")
        request = ticket.request
        if heard.given_up is not None:
            self._given_up(call, ticket, heard.given_up)
            return
        # What nobody waits for any more may well be generated with other weights by now.
        told = call.told[key] = take_report(
            call.told.get(key),
            heard.news,
            request,
            self._fleet.newest.most_used,
            worker=worker.name,
            exactly=None if ticket.done.done() else request.exactly,
            vocabulary=self._trained() or worker.capabilities.vocabulary,
            side=worker.capabilities.side,
            decode=self._decode,
        )
        workers = tuple(dict.fromkeys((*ticket.resume_workers, worker)))
        if told.unfinished:
            if self._continues and told.tokens > ticket.partials.tokens:
                ticket.partials, ticket.partials_workers = told, workers
                worker.progress.came(ticket.attempt)
            return
        del call.open[key], call.told[key]
        before = [len(one.tokens) for one in request.resume] or [0] * len(told.lengths)
        new = (n - begun for n, begun in zip(told.lengths, before, strict=True))
        worker.progress.answered(ticket.attempt, max(new))
        worker.suspicion.pop(_OVERDUE, None)
        self._fleet.answered(worker)
        self._release(worker, request)
        self._earlier_turns.generated(key, worker.name)
        if not trusted(workers):
            reason = "a worker that generated a part is not trusted"
            self._issue_again(worker, [ticket], reason, False, Ending.QUARANTINED)
        elif not ticket.done.done():
            ticket.done.set_result(Completed(request, told.samples(), workers))
        self._give_up(call)
        self.wake()

    def _issue_again(
        self,
        worker: Worker,
        tickets: list[Ticket],
        error: str,
        its_fault: bool,
        ending: Ending | None = None,
    ) -> None:
        if ending is None:
            ending = Ending.WORKER_LOST if worker.trusted else Ending.QUARANTINED
        for ticket in tickets:
            if ticket.done.done():
                continue
            ticket.losses += 1
            if its_fault:
                ticket.failures += 1
                ticket.failed_on.add(worker.identity)
            if ticket.failures >= MAX_FAILURES or ticket.losses >= MAX_ATTEMPTS:
                failure = WorkerError(
                    f"{ticket.request.key} failed {ticket.losses} times, "
                    f"the last time on {worker.name}: {error}"
                )
                fail([ticket], failure)
                continue
            ticket.forget_distrusted()
            ticket.renew(self._again(ticket))
            self._waiting[ticket.request.exactly].add(ticket)
            self._note_again(ticket, error, ending)
        # A worker that refuses connections would be called again at once; let the fleet look first.
        delay_s = min(0.5, self._deadlines.heartbeat_s / 4)
        asyncio.get_running_loop().call_later(delay_s, self.wake)

    def _again(self, ticket: Ticket) -> Request:
        """Returns the next attempt at a request, which takes along its newest samples."""
        attempt, resume = ticket.request.attempt + 1, ticket.partials.samples()
        again = dataclasses.replace(ticket.request, attempt=attempt, resume=resume)
        # The flow knows which version training needs; that of a measurement stays.
        return self._refresher.refreshed(again) if again.exactly is None else again

    def _note_again(self, ticket: Ticket, reason: str, ending: Ending) -> None:
        self.reissued += 1
        self._refresher.reissued(ticket.request, reason, ending)

    # --- requests that no worker can take --------------------------------------------------------

    def _without_worker(self) -> list[Ticket]:
        """Returns the waiting requests that no ready worker can take."""
        ready = [worker for worker in self._fleet.workers.values() if worker.ready]
        if any(not 0 < w.capabilities.context_tokens < self._longest for w in ready):
            return []
        return [t for t in self._tickets_waiting() if not any(takes(w, t) for w in ready)]

    def _look_for_worker(self) -> None:
        """Starts or ends the wait for a worker, whenever requests or workers have changed."""
        if self._without_worker():
            if self._no_worker is None:
                self._no_worker = asyncio.get_running_loop().call_later(
                    self._deadlines.startup_s, self._no_worker_came
                )
        elif self._no_worker is not None:
            self._no_worker.cancel()
            self._no_worker = None

    def _no_worker_came(self) -> None:
        self._no_worker = None
        waiting, deadline_s = self._without_worker(), self._deadlines.startup_s
        needed_s = self._pace and self._pace.needed_s("startup_s")
        what = _missing_worker(waiting, self._fleet.workers.values())
        fail(waiting, DeadlineError(what, deadline_s, "rlax.deadlines.startup_s", needed_s))

    # --- results that are not used ---------------------------------------------------------------

    def _look_soon(self) -> None:
        """Looks after the current callbacks of the loop, so that one message covers all."""
        if not self._looks and not self._closed:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if self._closed:
            return
        unwanted: defaultdict[str, list[Request]] = defaultdict(list)
        concerned: dict[str, Worker] = {}
        for call in self._calls.values():
            for key, ticket in call.open.items():
                if ticket.done.cancelled() and key not in call.asked:
                    call.asked.add(key)
                    unwanted[call.worker.name].append(ticket.request)
                elif not _too_old(ticket, self._oldest) or call.oldest == self._oldest:
                    continue
                concerned[call.worker.name] = call.worker
            call.oldest = self._oldest
        for name, worker in concerned.items():
            self._ask_to_give_up(worker, unwanted[name])

    def _ask_to_give_up(self, worker: Worker, unwanted: Iterable[Request]) -> None:
        """Has a worker give up requests, and those that are too old to train."""
        if worker.lost:  # what it still answers is read, but it cannot be called
            return
        attempts = [(request.key, request.attempt) for request in unwanted]
        # If it is lost, its heartbeats or its calls show it. What it gives up, its calls tell.
        asking = worker.link.give_up(attempts, self._oldest, self._deadlines.rpc_s)
        task = asyncio.ensure_future(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _given_up(self, call: Call, ticket: Ticket, tokens: Sequence[int]) -> None:
        """Takes a request that its worker has given up from a call.

        Args:
          tokens: see ``GivenUp``.

        Raises:
          WorkerError: giving up was not requested, or it cannot have generated so many tokens.
        """
        request, name = ticket.request, call.worker.name
        if not ticket.done.cancelled() and not _too_old(ticket, call.oldest):
            raise WorkerError(f"{name} gave up {request.key}, which it was not asked to")
        longest = request.sampling.max_new_tokens
        if len(tokens) > len(request.seeds) or not all(0 <= n <= longest for n in tokens):
            raise WorkerError(f"{name} gave up {request.key} with {list(tokens)[:99]} tokens")
        del call.open[request.key]
        call.told.pop(request.key, None)
        self._release(call.worker, request)
        if not ticket.done.done():
            ticket.done.set_exception(GivenUp(tuple(tokens)))
        self._give_up(call)
        self.wake()

    async def close(self) -> None:
        """Cancels every open call and every waiting request."""
        self._closed = True
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._no_worker is not None:
            self._no_worker.cancel()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for queue in self._waiting.values():
            for ticket in queue:
                ticket.done.cancel()
        self._waiting.clear()


def _rest(queue: WaitingRequests, ready: list[Worker]) -> float:
    """Returns the ``rest`` of ``choose``, with the size of the first request for all that wait."""
    size = next((len(ticket.request.seeds) for ticket in queue), 0)
    samples = size * len(queue) + sum(worker.assigned for worker in ready)
    return samples / max(1.0, sum(worker.slots * worker.speed for worker in ready))


def _too_old(ticket: Ticket, oldest: int) -> bool:
    """True if an open training request may have begun with weights older than ``oldest``."""
    request = ticket.request
    trains = request.key.purpose == "train" and request.key.sample is None
    return trains and not ticket.done.done() and request.min_version < oldest


def _missing_worker(waiting: Collection[Ticket], workers: Collection[Worker]) -> str:
    """Describes the missing worker that requests wait for, for messages."""
    longest = max((sequence_tokens(ticket) for ticket in waiting), default=0)
    limits = [worker.capabilities.context_tokens for worker in workers]
    what = "the return of a rollout worker"
    if limits and all(0 < limit < longest for limit in limits):
        what = (
            f"a rollout worker whose engine takes {longest} tokens (those that are there take at "
            f"most {max(limits)})"
        )
    elif without := [worker.name for worker in workers if worker.version < 0]:
        what = (
            "a rollout worker that has loaded weights (there without them, each with a log that "
            f"says why: {', '.join(without)})"
        )
    return f"{what}, for which {len(waiting)} groups wait,"
