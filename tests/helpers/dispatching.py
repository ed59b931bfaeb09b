"""A dispatcher whose workers are scripts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from rlax_plugin.config import Deadlines
from rlax_plugin.rollouts.capabilities import Needs
from rlax_plugin.rollouts.dispatch import Dispatcher, Reissuing
from rlax_plugin.rollouts.fleet import Fleet, FleetListener, Worker
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import reply_to_proto, request_from_proto
from rlax_plugin.types import GroupRequest, Rollout, SamplingParams

Script = Callable[[pb.GroupSpec], pb.GroupReply]
STOP = 99


def answer(spec: pb.GroupSpec) -> pb.GroupReply:
    """One token more than is resumed, for each sample that is not complete."""
    resume = request_from_proto(spec).resume
    begun = [len(r.tokens) + (r.finish_reason == "cancelled") for r in resume]
    return partial(spec.group_id, spec.seeds, *(begun or [1] * len(spec.seeds)), reason="stop")


def partial(group_id: int, seeds: Any, *lengths: int, reason: str = "cancelled") -> pb.GroupReply:
    """Samples of so many tokens: 0, 1, 2, ... generated with version 5; STOP ends a "stop"."""
    rollouts = []
    for i, (seed, n) in enumerate(zip(seeds, lengths, strict=True)):
        ids, logprob = np.arange(n, dtype=np.int32), np.full(n, -1, np.float32)
        versions = np.full(n, 5, np.int32)
        ids[-1:] = STOP if reason == "stop" else ids[-1:]
        rollouts.append(Rollout(group_id, i, seed, ids, logprob, logprob, versions, reason))
    return reply_to_proto(group_id, rollouts)


def failing(code: grpc.StatusCode) -> Script:
    def fail(spec: pb.GroupSpec) -> pb.GroupReply:
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, empty, empty, details=f"told {spec.group_id}")

    return fail


GONE = failing(grpc.StatusCode.UNAVAILABLE)


class Stub:
    def __init__(self, script: Script):
        self.script, self.calls, self.specs = script, [], []

    async def Generate(self, request: pb.GenerateRequest) -> Any:
        self.calls.append([spec.group_id for spec in request.groups])
        for spec in request.groups:
            await asyncio.sleep(0)
            self.specs.append(spec)
            found = self.script(spec)
            for reply in [found] if isinstance(found, pb.GroupReply) else found:
                yield reply


def refresh(request: GroupRequest) -> GroupRequest:
    return dataclasses.replace(request, min_version=request.min_version + 1)


class Reissued(Reissuing):
    """Refreshes requests as a test wants them, and keeps what was issued again."""

    def __init__(self, refresh: Callable[[GroupRequest], GroupRequest]):
        self._refresh = refresh
        self.again: list[tuple[GroupRequest, str]] = []

    def refreshed(self, request: GroupRequest) -> GroupRequest:
        return self._refresh(request)

    def reissued(self, request: GroupRequest, reason: str) -> None:
        self.again.append((request, reason))


class Losses(FleetListener):
    """Keeps which workers were lost, and why."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def worker_lost(self, worker: Worker, reason: str) -> None:
        self.lost.append(f"{worker.name}: {reason}")


def make(
    refresh: Any = refresh, needs: Needs | None = None, **deadlines: float
) -> tuple[Fleet, Dispatcher, list[str]]:

    settings = Deadlines(**({"heartbeat_s": 0.02, "startup_s": 600.0} | deadlines))
    fleet = Fleet(
        deadlines=settings,
        config_hash="abc",
        parameter_server="127.0.0.1:1",
        needs=needs,
    )
    fleet.latest_version = 9
    reissued, losses = Reissued(refresh), Losses()
    dispatcher = Dispatcher(fleet, settings, reissued)
    dispatcher.again = reissued.again  # for the tests
    fleet.listeners += [losses, dispatcher]
    return fleet, dispatcher, losses.lost


def declared(slots: int = 4, **others: Any) -> pb.Capabilities:
    """What a worker that can do everything declares."""
    able = {"seeded": True, "logprobs": True, "resumes": True, "verification": "canary"}
    return pb.Capabilities(slots=slots, **(able | others))


async def join(
    fleet: Fleet,
    name: str,
    script: Script,
    slots: int = 4,
    version: int = 0,
    process: str = "p",
    **capabilities: Any,
) -> Stub:
    request = pb.RegisterRequest(
        worker=name,
        address="127.0.0.1:1",
        capabilities=declared(slots, **capabilities),
        config_hash="abc",
        version=-1,
        process=process,
    )
    assert (await fleet.Register(request, None)).accepted
    stub = fleet.workers[name].stub = Stub(script)
    await fleet.Heartbeat(pb.HeartbeatRequest(worker=name, version=version, process=process), None)
    return stub


async def quarantine(fleet: Fleet, name: str, process: str = "p") -> None:
    told = pb.DeregisterRequest(worker=name, quarantine="a canary died", process=process)
    await fleet.Deregister(told, None)


def request(group_id: int, samples: int = 2) -> GroupRequest:
    tokens = np.array([1], np.int32)
    return GroupRequest(
        group_id, 1, tokens, tuple(range(samples)), SamplingParams(stop_ids=(STOP,))
    )


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))
