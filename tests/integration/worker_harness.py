"""Workers over real gRPC against the controller's half, on one event loop.

Only the engine, which generates counting numbers, is a script.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import doors
import numpy as np
from part_stubs import EngineStub
from runs import free_port
from sections import section_with
from waiting import eventually

from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.rollout.fleet.capabilities import Needs
from rlax_plugin.rollout.fleet.dispatch import Dispatcher, RequestRefresher
from rlax_plugin.rollout.fleet.fleet import Fleet, FleetListener
from rlax_plugin.rollout.fleet.fleet import Worker as FleetWorker
from rlax_plugin.rollout.fleet.fleet_service import FleetService
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rollout.worker.member import Member
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.run.programs.serve import work
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.parameter_server import ParameterServer

LIMIT_S = 120.0  # for one wait; a whole test may have twice as long
TOKEN_S = 0.005
STOP = 10**6
CONTINUE = {"on_new_weights": "continue", "progress_s": 30.0}


def section(deadlines: Mapping[str, float] | None = None, **rollouts: Any) -> RlaxSection:
    """Settings of a run; a stall of this process that takes most of a minute ends no wait."""
    patient = dict.fromkeys(("startup_s", "rpc_s", "group_s", "drain_s"), 60.0)
    return section_with(
        rollouts={"slots": 8, "max_new_tokens": 100_000} | rollouts,
        deadlines=patient | {"heartbeat_s": 0.1} | dict(deadlines or {}),
    )


class Counting(EngineStub):
    """Generates 0, 1, 2, ..., STOP for every sample, ``length`` tokens; reports every so many."""

    vocabulary = 0

    def __init__(self, length: int, *, every: int = 1):
        self.length, self.every = length, every
        self.version = -1
        self.faults: dict[int, Exception] = {}
        self.loads: list[int] = []
        self.asked: list[Request] = []
        self.last: dict[int, list[Sampled]] = {}  # the newest report of each group
        self.cancelled = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            slots=8, vocabulary=self.vocabulary, seeded=True, logprobs=True, resumes=True
        )

    async def load(self, version: WeightVersion) -> Loaded:
        self.loads.append(version.version)
        if error := self.faults.get(version.version):
            raise error
        return Loaded(version.version, {}, None)

    async def use(self, loaded: Loaded) -> None:
        self.version = loaded.version

    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, list[Sampled]], None]
    ) -> None:
        self.asked += requests
        try:
            await asyncio.gather(*(self._group(r, on_reply) for r in requests))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _group(self, request: Request, on_reply: Callable[..., None]) -> None:
        versions = [s.versions.tolist() for s in request.resume] or [[] for _ in request.seeds]
        done = False
        while not done:
            await asyncio.sleep(TOKEN_S)
            for generated in versions:
                generated.append(self.version)
            done = min(map(len, versions)) >= self.length
            samples = [
                self._sampled(request, i, generated, done) for i, generated in enumerate(versions)
            ]
            if done or len(versions[0]) % self.every == 0:
                self.last[request.key.group] = samples
                on_reply(request.key, samples)

    def _sampled(self, request: Request, index: int, generated: list[int], done: bool) -> Sampled:
        tokens, logprobs = (
            np.arange(len(generated), dtype=np.int32),
            np.full(len(generated), -1, np.float32),
        )
        tokens[-1:] = STOP if done else tokens[-1:]
        seed, versions = request.seeds[index], np.array(generated, np.int32)
        return Sampled(seed, tokens, logprobs, versions, "stop" if done else None)


class NoBytes:
    def delete(self, path: str) -> None:
        pass


class Trainer(FleetListener, RequestRefresher):
    """The controller's half: fleet, dispatcher and parameter server behind one port.

    Args:
      parameter_server: its address, if it is not behind that port.
      vocabulary: of the model that is trained; 0: not known.

    Attributes:
      became_ready: the version of a worker each time that it became ready.
    """

    def __init__(
        self,
        settings: RlaxSection,
        port: int = 0,
        parameters: ParameterServer | None = None,
        parameter_server: str = "",
        vocabulary: int = 0,
        needs: Needs | None = None,
    ):
        self.became_ready: list[int] = []
        self.lost: list[str] = []
        self.quarantined: list[tuple[str, str]] = []
        self.again: list[tuple[int, int, str]] = []
        self.callers = doors.SECRETS.callers()
        self.server, self.address = doors.server(port or free_port(), self.callers)
        self.parameters = parameters or ParameterServer(NoBytes(), keep=2, lease_s=60)
        self.fleet = Fleet(
            deadlines=settings.deadlines,
            config_hash="abc",
            parameter_server=parameter_server or self.address,
            needs=needs,
        )
        self.dispatcher = Dispatcher(
            self.fleet, settings.deadlines, self, trained=lambda: vocabulary
        )
        self.fleet.listeners += [self, self.dispatcher]

    def worker_ready(self, worker: FleetWorker) -> None:
        self.became_ready.append(worker.version)

    def worker_lost(self, worker: FleetWorker, reason: str) -> None:
        self.lost.append(f"{worker.name}: {reason}")

    def worker_quarantined(self, name: str, reason: str) -> None:
        self.quarantined.append((name, reason))

    def reissued(self, request: Request, reason: str, ending: str) -> None:
        self.again.append((request.key.group, request.attempt, reason))

    async def publish(self, number: int, restart: bool = False) -> None:
        path = f"/{self.fleet.incarnation}/{number}"
        await self.parameters.publish(make_version(number, path), restart)
        self.fleet.newest.number = number

    def held(self, name: str) -> int:
        """What the worker says it holds; -2: it is not there."""
        worker = self.fleet.workers.get(name)
        return -2 if worker is None else worker.version


@contextlib.asynccontextmanager
async def trainer(settings: RlaxSection, port: int = 0, **kwargs: Any) -> AsyncIterator[Trainer]:
    one = Trainer(settings, port, **kwargs)
    one.parameters.add_to(one.server)
    rpc.add_FleetServicer_to_server(FleetService(one.fleet, one.callers), one.server)
    await one.server.start()
    try:
        yield one
    finally:
        await one.dispatcher.close()
        await one.fleet.close()
        if not (kwargs.get("parameters") and kwargs.get("parameter_server")):  # else it is shared
            await one.parameters.close()
        await one.server.stop(None)


def port_of(one: Trainer) -> int:
    return int(one.address.rsplit(":", 1)[1])


class Worker:
    """A worker as ``rlax serve`` runs it."""

    def __init__(
        self, name: str, engine: Any, settings: RlaxSection, controller: str, **options: Any
    ):
        self.engine, self.terminated = engine, asyncio.Event()
        self.life = asyncio.ensure_future(
            work(
                RunToJoin(controller, settings, "abc", doors.SECRETS.of_worker),
                engine,
                name=name,
                terminated=self.terminated,
                **options,
            )
        )

    async def leave(self) -> None:
        """Tells it to end, and waits until it has."""
        self.terminated.set()
        await self.life


def member[M: Member](
    settings: RlaxSection, address: str, name: str = "w", kind: type[M] = Member, **options: Any
) -> M:
    config_hash = options.pop("config_hash", "abc")
    return kind(
        name=name,
        run=RunToJoin(address, settings, config_hash, doors.SECRETS.of_worker),
        endpoint=doors.Called(),
        **({"engine": Counting(5)} | options),
    )


async def until[T](look: Callable[[], T]) -> T:
    return await eventually(look, limit_s=LIMIT_S)


def group(number: int, samples: int = 2, min_version: int = 0) -> Request:
    seeds = tuple(range(10 * number, 10 * number + samples))
    sampling = SamplingParams(max_new_tokens=100_000, stop_ids=(STOP,))
    key, context = Key("train", number), np.array([1], np.int32)
    return Request(key, 1, context, seeds, sampling, min_version)
