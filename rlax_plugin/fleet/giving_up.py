"""Ends generation at workers whose result is not used: cancelled, moved or too stale requests.

A worker decides which requests are too stale, because only it knows which weights each began with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from rlax_plugin.errors import WorkerError
from rlax_plugin.fleet.fleet import Worker
from rlax_plugin.fleet.tickets import Call, GivenUp, Ticket
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import key_to_proto
from rlax_plugin.types import Request


class GivingUp:
    """Has workers give requests up, and takes the given-up requests from their calls.

    This costs at most one message per worker and step, and none if no request is affected. A
    worker that does not answer is no failure: it then generates samples that are not used.

    Args:
      calls: that are open.
      rpc_s: longest wait for an answer.

    Attributes:
      requests: number of requests given up so far.
    """

    def __init__(
        self,
        calls: Iterable[Call],
        rpc_s: float,
    ):
        self._calls, self._rpc_s = calls, rpc_s
        self._oldest = 0  # version that can train
        self._looks = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0

    def older_than(self, version: int) -> None:
        """Gives up requests begun with weights older than ``version``, which cannot train."""
        self._oldest = version
        self._look_soon()

    def watch(self, ticket: Ticket) -> None:
        """Notifies the worker once the ticket is cancelled."""
        ticket.done.add_done_callback(self._ended)

    def _ended(self, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._look_soon()

    def _look_soon(self) -> None:
        """Looks after the current callbacks of the loop, so that one message covers all."""
        if not self._looks and not self._closed:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if self._closed:
            return
        unwanted: defaultdict[str, list[Ticket]] = defaultdict(list)
        concerned: dict[str, Worker] = {}
        for call in self._calls:
            for key, ticket in call.open.items():
                if ticket.done.cancelled() and key not in call.asked:
                    call.asked.add(key)
                    unwanted[call.worker.name].append(ticket)
                elif not self._too_old(ticket, self._oldest) or call.oldest == self._oldest:
                    continue
                concerned[call.worker.name] = call.worker
        for call in self._calls:
            call.oldest = self._oldest
        for name, worker in concerned.items():
            self.ask(worker, [ticket.request for ticket in unwanted[name]])

    def ask(self, worker: Worker, unwanted: Iterable[Request]) -> None:
        """Has a worker give up requests, and those that are too old to train."""
        task = asyncio.ensure_future(self._ask(worker, unwanted, self._oldest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _too_old(ticket: Ticket, oldest: int) -> bool:
        """True if an open training request may have begun with weights older than ``oldest``."""
        request = ticket.request
        trains = request.key.purpose == "train" and request.key.sample is None
        return trains and not ticket.done.done() and request.min_version < oldest

    async def _ask(self, worker: Worker, unwanted: Iterable[Request], oldest: int) -> None:
        attempts = [pb.Attempt(key=key_to_proto(r.key), attempt=r.attempt) for r in unwanted]
        request = pb.GiveUpRequest(unwanted=attempts, oldest=oldest)
        # If it is lost, its heartbeats or its calls show it. What it gives up, its calls tell.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await worker.stub.GiveUp(request, timeout=self._rpc_s)

    def given_up(self, call: Call, ticket: Ticket, tokens: Sequence[int]) -> None:
        """Takes a request that its worker has given up from a call.

        Args:
          tokens: see ``GivenUp``.

        Raises:
          WorkerError: giving up was not requested, or it cannot have generated so many tokens.
        """
        request, name = ticket.request, call.worker.name
        if not ticket.done.cancelled() and not self._too_old(ticket, call.oldest):
            raise WorkerError(f"{name} gave up {request.key}, which it was not asked to")
        longest = request.sampling.max_new_tokens
        if len(tokens) > len(request.seeds) or not all(0 <= n <= longest for n in tokens):
            raise WorkerError(f"{name} gave up {request.key} with {list(tokens)[:99]} tokens")
        del call.open[request.key]
        call.told.pop(request.key, None)
        self.requests += 1
        if not ticket.done.done():
            ticket.done.set_exception(GivenUp(tuple(tokens)))

    async def close(self) -> None:
        """Cancels the messages that workers have not answered yet."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
