"""The parts of ``scale.py``: a trainer that computes nothing, workers that answer at once, a clock.

As a plug-in, it offers a trainer, a launcher and an observer. As a program, it is the process of
the workers: each has an address and a registration of its own, and answers a request at once with
the same tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from rlax_plugin.api import (
    BuildContext,
    Extension,
    Launcher,
    NonNegativeInt,
    Observer,
    PositiveInt,
    Section,
    Trainer,
    TrainerPort,
    hookimpl,
)
from rlax_plugin.config.handing import of_bytes
from rlax_plugin.config.identity import sample_hash
from rlax_plugin.fleet.package_versions import own_versions
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.callers import Callers
from rlax_plugin.rpc.certificate import new_identity
from rlax_plugin.rpc.doors import Door, connect, listen
from rlax_plugin.rpc.pieces import read_requests, reply_messages
from rlax_plugin.rpc.secret import new_token, read_secret
from rlax_plugin.rpc.wire import request_from_proto
from rlax_plugin.types import Sampled
from rlax_plugin.weights.client import ParameterServerClient

STOP = 1  # of the prompts ``numbers``
_LIMITS: Any = {"most_requests": 1 << 16, "most_bytes": 1 << 30, "within_s": 60.0}


class IdleConfig(Section):
    """Publishes one number and trains nothing."""

    first_step: NonNegativeInt = 0


class Idle(Trainer):
    """Asks for the batches of all steps, one after the other.

    Args:
      steps: the last step.
    """

    def __init__(self, steps: int):
        self._steps = steps

    def run(self, port: TrainerPort) -> None:
        port.publish(0, {"w": np.zeros(1, np.float32)}, None)
        for step in range(1, self._steps + 1):
            port.next_batch(step)
            port.publish(step, {"w": np.full(1, step, np.float32)}, None)
            port.step_done(step, {})
            port.decide(step)


class AtOnceConfig(Section):
    """Starts one process with workers that answer at once."""

    workers: PositiveInt = 8
    reports: NonNegativeInt = 0


class AtOnce(Launcher):
    """Starts this file as a program."""

    def __init__(self, config: AtOnceConfig):
        self._config = config
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, controller: str, run_dir: Path, token_file: Path) -> None:
        config = self._config
        command = [sys.executable, __file__, controller, str(token_file), str(config.workers)]
        with (run_dir / "workers.log").open("wb") as out:
            self._process = await asyncio.create_subprocess_exec(
                *command, str(config.reports), stdout=out, stderr=out
            )

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


def _named(handle: asyncio.Handle) -> str:
    """Returns the name of a callback; without its arguments, which may be whole batches."""
    callback: Any = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_coro().__qualname__
    return getattr(callback, "__qualname__", type(callback).__name__)


class LoopClockConfig(Section):
    """Measures the event loop's thread."""

    counts: bool = False


class LoopClock(Observer):
    """Writes the CPU time of the event loop's thread at the end of each step to ``clock.jsonl``.

    Also the longest stay: the CPU time of one callback, during which the loop does nothing else.
    If it counts, also the calls of functions and the jumps (turns of loops) in that thread, which
    are the same on every machine; this slows the thread down.
    """

    def __init__(self, path: Path, counts: bool):
        self._path, self._counts = path, counts
        self._calls = self._jumps = 0
        self._longest_s, self._where, self._callbacks = 0.0, "", 0
        run = asyncio.Handle._run

        clock = self

        def timed(self: asyncio.Handle) -> None:
            began_s = time.thread_time()
            run(self)
            took_s = time.thread_time() - began_s
            clock._callbacks += 1
            if took_s > clock._longest_s:
                clock._longest_s, clock._where = took_s, _named(self)

        asyncio.Handle._run = timed  # pyright: ignore[reportAttributeAccessIssue]

    def _count(self) -> None:
        """Counts from now on what this thread does."""
        self._counts = False
        monitoring, mine = sys.monitoring, threading.get_ident()
        tool, events = monitoring.PROFILER_ID, monitoring.events

        def called(*_: object) -> None:
            self._calls += threading.get_ident() == mine

        def jumped(*_: object) -> None:
            self._jumps += threading.get_ident() == mine

        monitoring.use_tool_id(tool, "scale")
        monitoring.register_callback(tool, events.CALL, called)
        monitoring.register_callback(tool, events.JUMP, jumped)
        monitoring.set_events(tool, events.CALL | events.JUMP)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._counts:
            self._count()
        line = {
            "step": step,
            "cpu_s": time.thread_time(),
            "wall_s": time.perf_counter(),
            "longest_s": self._longest_s,
            "where": self._where,
            "callbacks": self._callbacks,
            "calls": self._calls,
            "jumps": self._jumps,
            "groups": metrics["curation/groups_scored"],
            "tokens": metrics["rollout/tokens"],
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._longest_s = 0.0


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    def build(config: IdleConfig, context: BuildContext) -> Idle:
        return Idle(int(context.maxtext["steps"]))

    return {"idle": Extension(IdleConfig, build)}


@hookimpl
def rlax_register_launcher() -> dict[str, Extension]:
    return {"at_once": Extension(AtOnceConfig, lambda config, context: AtOnce(config))}


@hookimpl
def rlax_register_observer() -> dict[str, Extension]:
    def build(config: LoopClockConfig, context: BuildContext) -> LoopClock:
        return LoopClock(context.run_dir / "clock.jsonl", config.counts)

    return {"loop_clock": Extension(LoopClockConfig, build)}


# --- the process of the workers -------------------------------------------------------------------


def canned(seed: int, most: int, version: int) -> Sampled:
    """Returns the sample of a seed: half of ``most`` tokens or more, ``STOP`` last."""
    length = most - seed % max(1, most // 2)
    tokens = np.full(length, 2 + seed % 8, np.int32)
    tokens[-1] = STOP
    versions = np.full(length, version, np.int32)
    return Sampled(seed, tokens, np.full(length, -1, np.float32), versions, "stop")


class _Worker(rpc.RolloutServicer):
    """One of the workers.

    Args:
      reports: of each request, on the way to its answer.
    """

    def __init__(self, name: str, reports: int):
        self.name, self.version = name, -1
        self._reports = reports

    async def Generate(
        self, request_iterator: AsyncIterator[pb.GenerateRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Reply]:
        asked = await read_requests(request_iterator, **_LIMITS)
        for first, *rest in asked:
            request = request_from_proto(first, {}, rest)
            while self.version < request.min_version:
                await asyncio.sleep(0.005)
            most = request.sampling.max_new_tokens
            samples = [canned(seed, most, self.version) for seed in request.seeds]
            known = [0] * len(samples)
            for number in range(1, self._reports + 1):
                ends = [number * len(s.tokens) // (self._reports + 1) for s in samples]
                partial = [_begun(s, end) for s, end in zip(samples, ends, strict=True)]
                for message in reply_messages(request.key, partial, known):
                    yield message
                known = ends
            for message in reply_messages(request.key, samples, known):
                yield message

    async def GiveUp(
        self, request: pb.GiveUpRequest, context: grpc.aio.ServicerContext
    ) -> pb.GiveUpReply:
        return pb.GiveUpReply()


def _begun(sampled: Sampled, end: int) -> Sampled:
    columns = (sampled.tokens[:end], sampled.logprobs[:end], sampled.versions[:end])
    return Sampled(sampled.seed, *columns, None)


async def _serve(controller: str, token_file: str, count: int, reports: int) -> None:
    secret = read_secret(token_file, "token_file")
    connection = connect(controller, secret)
    fleet = rpc.FleetStub(connection)
    config = of_bytes((await fleet.Config(pb.ConfigRequest(worker="w0"))).config)
    identity, versions = new_identity(), own_versions(config.section.plugins)
    workers, beats = [], []
    for number in range(count):
        worker, token, callers = _Worker(f"w{number}", reports), new_token(), Callers()
        callers.admit(token, "trainer")
        server, address = listen("127.0.0.1", 0, Door(callers, identity), "port")
        rpc.add_RolloutServicer_to_server(worker, server)
        await server.start()
        beats.append((worker, server, rpc.FleetStub(connection.showing(token))))
        workers.append(worker)
        reply = await fleet.Register(
            pb.RegisterRequest(
                worker=worker.name,
                address=address,
                config_hash=sample_hash(config.content),
                version=-1,
                process=f"p{number}",
                capabilities=pb.Capabilities(
                    slots=config.section.rollouts.slots,
                    seeded=True,
                    logprobs=True,
                    resumes=True,
                    verification="canary",
                ),
                token=token,
                certificate=identity.certificate,
                versions=versions,
            )
        )
        assert reply.accepted, reply.reason

    async def beat(worker: _Worker, stub: rpc.FleetStub) -> None:
        request = pb.HeartbeatRequest(
            worker=worker.name, version=worker.version, process=f"p{worker.name[1:]}"
        )
        await stub.Heartbeat(request)

    async def all_beat() -> None:
        await asyncio.gather(*(beat(worker, stub) for worker, _, stub in beats))

    async def live() -> None:
        while True:
            await asyncio.sleep(config.section.deadlines.heartbeat_s)
            await all_beat()

    async def follow() -> None:
        client = ParameterServerClient(controller, secret, rpc_s=60.0)
        async for version in client.watch():
            for worker in workers:
                worker.version = version.version
            await all_beat()

    async def leave(worker: _Worker, stub: rpc.FleetStub) -> None:
        process = f"p{worker.name[1:]}"
        await stub.Deregister(pb.DeregisterRequest(worker=worker.name, process=process))

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    living = [asyncio.ensure_future(one) for one in (live(), follow())]
    await ended.wait()
    for task in living:
        task.cancel()
    await asyncio.gather(*(leave(worker, stub) for worker, _, stub in beats))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("controller")
    parser.add_argument("token_file")
    parser.add_argument("workers", type=int)
    parser.add_argument("reports", type=int)
    given = parser.parse_args()
    asyncio.run(_serve(given.controller, given.token_file, given.workers, given.reports))


if __name__ == "__main__":
    main()
