"""Workers in virtual time behind the real dispatcher: a decode step takes a tick, prefill none.

The dispatcher, the fleet and each worker's scheduler are the real ones. Slots generate tokens
without a model: a sample ends after as many as its test has planned for its seed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import grpc
import numpy as np
from dispatching import STOP, declared, requests_of

from rlax_plugin.rollout.batching.decode_engine import Prefill, SlotOutput
from rlax_plugin.rollout.batching.jobs import Job
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_to_proto, reply_to_proto, request_from_proto

ARRIVAL_STEPS, LINGER_STEPS = 4, 2  # as the engine jetstream has them
_MOST_LOOKS = 1000  # a hundredth of a second each, for something that is to be done
_PASSES = 12  # of the event loop, until everything that follows from a reply has happened


@dataclass(slots=True)
class _Sample:
    seed: int
    generated: int
    length: int
    before: int  # of the tokens, that it had when it came into the slot


class VirtualSlots:
    """Decode slots without a model, which count what they do.

    Args:
      length_of: maps a seed to the number of tokens of its sample.

    Attributes:
      slot_steps_total: slot-steps so far in which a slot generated a token.
      prefills: prompts and beginnings of samples that were prefilled.
    """

    def __init__(self, slots: int, length_of: Callable[[int], int]):
        self.slots, self._length_of = slots, length_of
        self.max_new_tokens = 10**6
        self.running: dict[int, _Sample] = {}
        self.steps_total = self.slot_steps_total = self.prefills = 0

    @property
    def free_slots(self) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self.running]

    def kept_for(self, context: np.ndarray) -> None:
        return None

    def forget_contexts(self) -> None:
        pass

    def insert(self, weights: Mapping[str, object], requests: Iterable[Prefill]) -> None:
        for one in requests:
            self.prefills += 1
            for slot, seed in zip(one.slots, one.seeds, strict=True):
                self.running[slot] = _Sample(
                    seed, one.generated, self._length_of(seed), one.generated
                )

    def decode(
        self, weights: Mapping[str, object], max_steps: int, stop_when_free: bool
    ) -> list[SlotOutput]:
        left = [one.length - one.generated for one in self.running.values()]
        steps = min([max_steps, min(left) if stop_when_free else max(left)])
        for one in self.running.values():
            new = min(steps, one.length - one.generated)
            one.generated += new
            self.slot_steps_total += new
        self.steps_total += steps
        ended = [slot for slot, one in self.running.items() if one.generated == one.length]
        found = self.read(ended)
        self.release(ended)
        return found

    def read(self, slots: Iterable[int]) -> list[SlotOutput]:
        return [self._output(slot, self.running[slot]) for slot in slots]

    @staticmethod
    def _output(slot: int, one: _Sample) -> SlotOutput:
        count = one.generated - one.before
        logprobs = np.full(count, -1.0, np.float32)
        tokens = np.ones(count, np.int32)
        tokens[-1:] = STOP if one.generated == one.length else 1
        return SlotOutput(slot, tokens, logprobs, logprobs)

    def release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            del self.running[slot]


@dataclass(eq=False)
class _Call:
    """The worker's side of a call; None in its replies ends it, an exception breaks it."""

    open: int
    replies: asyncio.Queue[pb.Reply | BaseException | None] = field(default_factory=asyncio.Queue)


class VirtualWorker:
    """A worker of a virtual fleet; it is the stub by which the dispatcher calls it.

    Args:
      on_new_weights: as ``rlax.rollouts.on_new_weights``.

    Attributes:
      now: tick at which its next turn begins; None: it waits for requests.
    """

    def __init__(self, fleet: VirtualFleet, name: str, slots: VirtualSlots, on_new_weights: str):
        self.name, self.slots, self._fleet, self._mode = name, slots, fleet, on_new_weights
        self.scheduler = Scheduler(slots, arrival_steps=ARRIVAL_STEPS, linger_steps=LINGER_STEPS)
        self.waiting: list[Job] = []
        self.open: dict[Job, _Call] = {}
        self.version, self.newest = 0, 0
        self.now: int | None = None

    async def Generate(self, messages: Iterable[pb.GenerateRequest]) -> AsyncIterator[pb.Reply]:
        requests = [request_from_proto(one) for one in requests_of(messages)]
        call = _Call(len(requests))
        for request in requests:
            job = Job(request, deliver=lambda samples: None, fail=lambda error: None)
            self.open[job] = call
            self.waiting.append(job)
        if self.now is None:
            self._fleet.next_turn(self, self._fleet.now)
        while (reply := await call.replies.get()) is not None:
            if isinstance(reply, BaseException):
                raise reply
            yield reply

    def turn(self) -> tuple[int, list[Job]] | None:
        """Swaps weights, fills slots and decodes, as the engine jetstream does.

        Returns:
          The ticks that it took, and the groups that are complete then; None if it has no work.
        """
        swap = self.newest > self.version
        if swap and self._mode == "continue":
            back = self.scheduler.interrupt(keep_tokens=True)
            self.waiting = list(dict.fromkeys(back + self.waiting))
        if swap and not self.scheduler.active:
            self.version, swap = self.newest, False
        prefills = [] if swap else self.scheduler.plan(self.waiting, self.version)
        self.waiting = [job for job in self.waiting if job.waiting]
        self.slots.insert({}, prefills)
        if not self.scheduler.active:
            self.now = None
            return None
        before = self.slots.steps_total
        more = swap or any(job.min_version <= self.version for job in self.waiting)
        done = self.scheduler.advance({}, more)
        return self.slots.steps_total - before, done

    def answer(self, job: Job) -> None:
        call = self.open.pop(job)
        call.replies.put_nowait(reply_to_proto(job.request.key, job.samples))
        call.open -= 1
        if not call.open:
            call.replies.put_nowait(None)

    def die(self) -> None:
        """Breaks all calls; nothing of what runs here is answered any more."""
        for call in dict.fromkeys(self.open.values()):
            empty = grpc.aio.Metadata()
            error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, details="dead")
            call.replies.put_nowait(error)
        self.open.clear()
        self.now = None

    def heartbeat(self) -> pb.HeartbeatRequest:
        progress = [
            pb.Progress(
                key=key_to_proto(job.request.key),
                attempt=job.request.attempt,
                moves=self.slots.steps_total,
                unfinished=sum(s.finish is None for s in job.samples),
            )
            for job in self.open
        ]
        return pb.HeartbeatRequest(
            worker=self.name, version=self.version, process="p", progress=progress
        )


class VirtualFleet:
    """The workers and their common time; ``run`` lets it pass until nothing is left to do.

    Args:
      heartbeat_ticks: between the heartbeats of a worker.
    """

    def __init__(self, fleet: Fleet, dispatcher: Dispatcher, heartbeat_ticks: int):
        self.fleet, self.dispatcher = fleet, dispatcher
        self.now = 0
        self.workers: dict[str, VirtualWorker] = {}
        self._heartbeat_ticks = heartbeat_ticks
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()

    async def join(self, name: str, slots: VirtualSlots, on_new_weights: str = "finish") -> None:
        """Adds a worker with weights."""
        request = pb.RegisterRequest(
            worker=name,
            address="127.0.0.1:1",
            capabilities=declared(slots.slots),
            config_hash="abc",
            version=-1,
            process="p",
        )
        assert (await self.fleet.Register(request, None)).accepted
        worker = self.workers[name] = VirtualWorker(self, name, slots, on_new_weights)
        self.fleet.workers[name].stub = worker
        await self.fleet.Heartbeat(worker.heartbeat(), None)

    def at(self, tick: int, act: Callable[[], None]) -> None:
        """Calls ``act`` at a tick, after what was planned for that tick before."""
        heapq.heappush(self._events, (tick, next(self._number), act))

    def next_turn(self, worker: VirtualWorker, tick: int) -> None:
        worker.now = tick
        self.at(tick, lambda: self._turn(worker))

    def _turn(self, worker: VirtualWorker) -> None:
        if worker.now != self.now or self.workers.get(worker.name) is not worker:
            return
        if (found := worker.turn()) is None:
            return
        ticks, done = found
        worker.now = self.now + ticks
        for job in done:
            self.at(worker.now, lambda job=job: job in worker.open and worker.answer(job))
        self.next_turn(worker, worker.now)

    def publish(self, version: int) -> None:
        """Has all workers use a version, as soon as their running samples allow it."""
        self.fleet.newest.number = version
        for worker in self.workers.values():
            worker.newest = version
            if worker.now is None:
                self.next_turn(worker, self.now)

    def kill(self, name: str) -> None:
        self.workers.pop(name).die()

    async def settle(self) -> None:
        """Lets the event loop handle everything that has happened at this tick."""
        for _ in range(_PASSES):
            await asyncio.sleep(0)

    async def run(self, ended: Callable[[], bool]) -> None:
        """Lets time pass until ``ended``; fails if there is nothing left to wait for."""
        beat, looks = self._heartbeat_ticks, 0
        await self.settle()
        while not ended():
            if not self._events:
                looks += 1
                assert looks < _MOST_LOOKS, "nothing happens any more"
                await asyncio.sleep(0.01)  # after a failure the dispatcher waits before it goes on
                continue
            looks, tick = 0, self._events[0][0]
            if tick >= beat:
                self.now, beat = beat, beat + self._heartbeat_ticks
                for worker in list(self.workers.values()):
                    await self.fleet.Heartbeat(worker.heartbeat(), None)
            else:
                self.now = tick
                while self._events and self._events[0][0] == tick:
                    heapq.heappop(self._events)[2]()
            await self.settle()
