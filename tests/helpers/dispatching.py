"""A dispatcher whose workers are scripts."""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import numpy as np

from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.base.types import Finish, Key, Request, Sampled, SamplingParams
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.capabilities import Needs
from rlax_plugin.rollout.fleet.dispatch import Dispatcher, RequestRefresher
from rlax_plugin.rollout.fleet.fleet import Fleet, FleetListener, Worker
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto, reply_to_proto, request_from_proto

Script = Callable[[pb.Request], Any]
STOP = 99


def answer(message: pb.Request) -> pb.Reply:
    """One token more than is resumed, for each sample that is not complete."""
    begun = [len(s.tokens) + (s.finish is None) for s in request_from_proto(message).resume]
    return reply_to(message, *(begun or [1] * len(message.seeds)), finish="stop")


def reply_to(message: pb.Request, *lengths: int, finish: Finish | None = None) -> pb.Reply:
    """What ``generated`` makes of the request's seeds, whole."""
    return reply_to_proto(key_from_proto(message.key), generated(message.seeds, *lengths, finish))


def generated(seeds: Iterable[int], *told: int | Finish | None) -> list[Sampled]:
    """Samples of so many tokens: 0, 1, 2, ... generated with version 5; STOP ends a "stop".

    Args:
      told: the length of each sample; and last how they ended.
    """
    *lengths, finish = told
    samples = []
    for seed, length in zip(seeds, lengths, strict=True):
        tokens, logprobs = np.arange(length, dtype=np.int32), np.full(length, -1, np.float32)
        tokens[-1:] = STOP if finish == "stop" else tokens[-1:]
        versions = np.full(length, 5, np.int32)
        samples.append(Sampled(seed, tokens, logprobs, versions, finish))
    return samples


def failing(code: grpc.StatusCode) -> Script:
    def fail(message: pb.Request) -> pb.Reply:
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, empty, empty, details=f"told {message.key.group}")

    return fail


GONE = failing(grpc.StatusCode.UNAVAILABLE)


def requests_of(messages: Iterable[pb.GenerateRequest]) -> list[pb.Request]:
    """The requests of a call, none of which is cut."""
    found = [one for message in messages for one in message.requests]
    assert not any(one.more for one in found)
    return found


class Stub:
    """A worker as the dispatcher calls it.

    Args:
      held: each group is answered only once its event in ``go`` is set.

    Attributes:
      calls: the groups of each call; ``ended``: calls that have ended.
    """

    def __init__(self, script: Script, held: bool = False):
        self.script, self._held = script, held
        self.calls: list[list[int]] = []
        self.requests: list[pb.Request] = []
        self.go = collections.defaultdict[int, asyncio.Event](asyncio.Event)
        self.ended = 0

    async def Generate(self, messages: Iterable[pb.GenerateRequest]) -> Any:
        requests = requests_of(messages)
        self.calls.append([one.key.group for one in requests])
        try:
            for one in requests:
                await asyncio.sleep(0)
                self.requests.append(one)
                if self._held:
                    await self.go[one.key.group].wait()
                found = self.script(one)
                for reply in [found] if isinstance(found, pb.Reply) else found:
                    yield reply
        finally:
            self.ended += 1

    def release(self) -> None:
        """Lets all groups go, and those that come later."""
        self._held = False
        for event in self.go.values():
            event.set()


def refresh(request: Request) -> Request:
    return dataclasses.replace(request, min_version=request.min_version + 1)


class Reissued(RequestRefresher):
    """Refreshes requests as a test wants them, and keeps what was issued again."""

    def __init__(self, refresh: Callable[[Request], Request]):
        self._refresh = refresh
        self.again: list[tuple[Request, str]] = []
        self.endings: list[str] = []

    def refreshed(self, request: Request) -> Request:
        return self._refresh(request)

    def reissued(self, request: Request, reason: str, ending: str) -> None:
        self.again.append((request, reason))
        self.endings.append(ending)


class Losses(FleetListener):
    """Keeps which workers were lost, and why."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def worker_lost(self, worker: Worker, reason: str) -> None:
        self.lost.append(f"{worker.name}: {reason}")


class HeldClock(Clock):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        """At once, and whoever has slept until then has his turn."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def make(
    refresh: Any = refresh,
    needs: Needs | None = None,
    clock: Clock | None = None,
    note: Callable[[str], None] = lambda line: None,
    by_speed: bool = True,
    continues: bool = True,
    **deadlines: float,
) -> tuple[Fleet, Dispatcher, list[str]]:

    settings = Deadlines(**({"heartbeat_s": 0.02, "startup_s": 600.0} | deadlines))
    fleet = Fleet(
        deadlines=settings,
        config_hash="abc",
        parameter_server="127.0.0.1:1",
        needs=needs,
        clock=clock,
        note=note,
    )
    fleet.newest.number = 9
    reissued, losses = Reissued(refresh), Losses()
    dispatcher = Dispatcher(fleet, settings, reissued, by_speed=by_speed, continues=continues)
    dispatcher.again, dispatcher.endings = reissued.again, reissued.endings  # for the tests
    fleet.listeners += [losses, dispatcher]
    return fleet, dispatcher, losses.lost


def declared(slots: int = 4, **others: Any) -> pb.Capabilities:
    """What a worker that can do everything declares."""
    able = {"seeded": True, "logprobs": True, "resumes": True}
    return pb.Capabilities(slots=slots, **(able | others))


def registration(worker: str = "a", **changes: Any) -> pb.RegisterRequest:
    """What a process says that can do everything, and has no weights yet."""
    fields = {"address": "127.0.0.1:1", "config_hash": "abc", "version": -1, "process": "p"}
    fields |= {"worker": worker, "capabilities": declared()}
    return pb.RegisterRequest(**(fields | changes))


async def join(
    fleet: Fleet,
    name: str,
    script: Script,
    slots: int = 4,
    version: int = 0,
    process: str = "p",
    held: bool = False,
    **capabilities: Any,
) -> Stub:
    able = declared(slots, **capabilities)
    request = registration(name, capabilities=able, process=process)
    assert (await fleet.Register(request, None)).accepted
    stub = fleet.workers[name].link.stub = Stub(script, held)
    await fleet.Heartbeat(pb.HeartbeatRequest(worker=name, version=version, process=process), None)
    return stub


async def quarantine(fleet: Fleet, name: str, process: str = "p") -> None:
    told = pb.DeregisterRequest(worker=name, quarantine="a canary died", process=process)
    await fleet.Deregister(told, None)


def request(group: int, samples: int = 2, **changes: Any) -> Request:
    context, sampling = np.array([1], np.int32), SamplingParams(stop_ids=(STOP,))
    made = Request(Key("train", group), 1, context, tuple(range(samples)), sampling)
    return dataclasses.replace(made, **changes)


def exactly(version: int, number: int = 0) -> Request:
    """A request of an evaluation, for one version."""
    return request(0, key=Key("evaluate", number), exactly=version)
