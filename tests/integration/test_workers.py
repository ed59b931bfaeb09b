"""Workers over real gRPC against the controller's half: quarantine, handing over, a new trainer.

Everything runs on one event loop; only the engine, which generates counting numbers, is a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from runs import free_port

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import (
    DeadlineError,
    WeightsError,
    WeightsMismatchError,
    WorkerError,
)
from rlax_plugin.rollouts.dispatch import Dispatcher
from rlax_plugin.rollouts.fleet import Fleet
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.wire import SERVER_OPTIONS, request_to_proto
from rlax_plugin.types import GroupRequest, Rollout, SamplingParams, WeightVersion
from rlax_plugin.weights.service import ParameterServer
from rlax_plugin.worker.member import PROCESS, Member
from rlax_plugin.worker.serve import work

LIMIT_S = 60.0
TOKEN_S = 0.005
STOP = 10**6


def section(**rollouts: Any) -> RlaxSection:
    return RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "rollouts": {"slots": 8, "max_new_tokens": 100_000} | rollouts,
            "deadlines": {"heartbeat_s": 0.1, "startup_s": 20, "drain_s": 10},
        }
    )


class Counting:
    """Generates 0, 1, 2, ..., STOP for every sample, ``length`` tokens; reports every so many."""

    def __init__(self, length: int, *, every: int = 1):
        self.length, self.every = length, every
        self.version = -1
        self.faults: dict[int, Exception] = {}
        self.loads: list[int] = []
        self.asked: list[GroupRequest] = []
        self.last: dict[int, list[Rollout]] = {}  # the newest report of each group
        self.cancelled = 0

    def health(self) -> dict[str, float]:
        return {}

    async def load_weights(self, version: WeightVersion) -> None:
        self.loads.append(version.version)
        if error := self.faults.get(version.version):
            raise error
        self.version = version.version

    async def generate(
        self, requests: Sequence[GroupRequest], on_group: Callable[[int, list[Rollout]], None]
    ) -> None:
        self.asked += requests
        try:
            await asyncio.gather(*(self._group(r, on_group) for r in requests))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _group(self, request: GroupRequest, on_group: Callable[..., None]) -> None:
        versions = [r.versions.tolist() for r in request.resume] or [[] for _ in request.seeds]
        done = False
        while not done:
            await asyncio.sleep(TOKEN_S)
            for generated in versions:
                generated.append(self.version)
            done = min(map(len, versions)) >= self.length
            rollouts = [
                self._rollout(request, i, generated, done) for i, generated in enumerate(versions)
            ]
            if done or len(versions[0]) % self.every == 0:
                self.last[request.group_id] = rollouts
                on_group(request.group_id, rollouts)

    def _rollout(
        self, request: GroupRequest, index: int, generated: list[int], done: bool
    ) -> Rollout:
        tokens, logprob = (
            np.arange(len(generated), dtype=np.int32),
            np.full(len(generated), -1, np.float32),
        )
        tokens[-1:] = STOP if done else tokens[-1:]
        seed, versions = request.seeds[index], np.array(generated, np.int32)
        reason = "stop" if done else "cancelled"
        return Rollout(request.group_id, index, seed, tokens, logprob, logprob, versions, reason)


class NoBytes:
    def delete(self, path: str) -> None:
        pass


class Trainer:
    """The controller's half: fleet, dispatcher and parameter server behind one port."""

    def __init__(self, settings: RlaxSection, parameters: ParameterServer | None = None):
        self.latest_version = -1
        self.lost: list[str] = []
        self.quarantined: list[tuple[str, str]] = []
        self.again: list[tuple[int, int, str]] = []
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.parameters = parameters or ParameterServer(NoBytes(), keep=2, lease_s=10)
        self.fleet = Fleet(
            deadlines=settings.deadlines,
            config_hash="abc",
            parameter_server="",
            latest_version=lambda: self.latest_version,
            on_ready=lambda worker: self.dispatcher.wake(),
            on_lost=lambda worker, reason: self.lost.append(f"{worker.name}: {reason}"),
            on_quarantined=lambda *told: self.quarantined.append(told),
        )
        self.dispatcher = Dispatcher(
            self.fleet,
            settings.deadlines,
            lambda request: request,
            lambda request, why: self.again.append((request.group_id, request.attempt, why)),
        )

    async def publish(self, number: int, restart: bool = False) -> None:
        path = f"/{self.fleet.incarnation}/{number}"
        await self.parameters.publish(WeightVersion(number, number, path), restart)
        self.latest_version = number

    def held(self, name: str) -> int:
        """What the worker says it holds; -2: it is not there."""
        worker = self.fleet.workers.get(name)
        return -2 if worker is None else worker.version


@contextlib.asynccontextmanager
async def trainer(settings: RlaxSection, port: int = 0, **kwargs: Any) -> AsyncIterator[Trainer]:
    one = Trainer(settings, **kwargs)
    one.parameters.add_to(one.server)
    rpc.add_FleetServicer_to_server(one.fleet, one.server)
    bound = one.server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
    one.address = one.fleet._parameter_server = f"127.0.0.1:{bound}"
    await one.server.start()
    try:
        yield one
    finally:
        await one.dispatcher.close()
        await one.fleet.close()
        await one.server.stop(None)


class Worker:
    """A worker as ``rlax serve`` runs it."""

    def __init__(self, name: str, engine: Any, settings: RlaxSection, controller: str):
        self.engine, self.terminated = engine, asyncio.Event()
        self.life = asyncio.ensure_future(
            work(
                settings,
                engine,
                name=name,
                controller=controller,
                config_hash="abc",
                terminated=self.terminated,
            )
        )


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def group(number: int, samples: int = 2, min_version: int = 0) -> GroupRequest:
    seeds = tuple(range(10 * number, 10 * number + samples))
    sampling = SamplingParams(max_new_tokens=100_000, stop_ids=(STOP,))
    return GroupRequest(number, 1, np.array([1], np.int32), seeds, sampling, min_version)


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


CONTINUE = {"on_new_weights": "continue", "progress_s": 2.0}


def test_a_draining_worker_hands_over_every_token_it_has_reported():
    async def main():
        settings = section(**CONTINUE)
        async with trainer(settings) as one:
            await one.publish(3)
            endless = Worker("a", Counting(100_000, every=50), settings, one.address)
            await until(lambda: one.held("a") == 3)
            tickets = []
            for number in range(3):  # three calls
                tickets.append(one.dispatcher.submit(group(number)))
                await until(lambda n=number: n in endless.engine.last)
            quick = Worker("b", Counting(10), settings, one.address)
            reported = [len(endless.engine.last[number][0].tokens) for number in range(3)]
            endless.terminated.set()
            await endless.life
            answers = [await ticket for ticket in tickets]
            kept = 0
            for number, (asked, rollouts, _) in enumerate(answers):
                handed_over = len(endless.engine.last[number][0].tokens)
                kept += 2 * handed_over
                assert [len(r.tokens) for r in asked.resume] == [handed_over] * 2
                # It reported once more, and did not go on until its time was over.
                assert handed_over % 50 == 0 and 0 < handed_over - reported[number] <= 300
                assert asked.attempt == 2
                for r in rollouts:
                    assert r.worker == "a+b" and r.finish_reason == "stop"
                    assert r.tokens.tolist() == [*range(len(r.tokens) - 1), STOP]
                    assert set(r.versions.tolist()) == {3}
            assert one.dispatcher.tokens_resumed == kept and one.dispatcher.reissued == 3
            leaving = "UNAVAILABLE: this worker is leaving"
            assert sorted(one.again) == [(number, 2, leaving) for number in range(3)]
            assert one.lost == ["a: left"] and one.quarantined == []
            quick.terminated.set()
            await quick.life

    run(main)


def test_a_drain_does_not_wait_for_a_worker_that_reports_nothing():
    async def main():
        settings = section(on_new_weights="continue", progress_s=0.1)
        async with trainer(settings) as one:
            await one.publish(0)
            mute = Worker("a", Counting(100_000, every=100_000), settings, one.address)
            await until(lambda: one.held("a") == 0)
            ticket = one.dispatcher.submit(group(0))
            await until(lambda: mute.engine.asked)
            mute.terminated.set()
            await mute.life
            quick = Worker("b", Counting(4), settings, one.address)
            asked, rollouts, _ = await ticket
            assert asked.resume == () and asked.attempt == 2
            assert [len(r.tokens) for r in rollouts] == [4, 4] and mute.engine.cancelled == 1
            quick.terminated.set()
            await quick.life

    run(main)


@pytest.mark.parametrize("mode", ["finish", "discard"])
def test_without_continue_a_drain_finishes_what_was_begun(mode):
    async def main():
        settings = section(on_new_weights=mode, progress_s=0.01)
        async with trainer(settings) as one:
            await one.publish(0)
            engine = Counting(100, every=100)
            worker = Worker("a", engine, settings, one.address)
            await until(lambda: one.held("a") == 0)
            ticket = one.dispatcher.submit(group(0))
            await until(lambda: engine.asked)
            worker.terminated.set()
            asked, rollouts, _ = await ticket
            await worker.life
            assert asked.attempt == 1 and len(rollouts[0].tokens) == 100
            assert one.again == [] and engine.cancelled == 0

    run(main)


@pytest.mark.parametrize(
    ("error", "loads"),
    [
        (WeightsMismatchError("variable 'w' has fingerprint 1, 2 was published"), [0, 1]),
        (WeightsError("'w' was not published"), [0, 1, 1, 1]),
    ],
)
def test_a_worker_with_wrong_weights_is_quarantined(error, loads, monkeypatch):
    monkeypatch.setattr("rlax_plugin.concurrency.retrying._PAUSE_S", (0.05, 0.1))

    async def main():
        settings = section(**CONTINUE)
        async with trainer(settings) as one:
            await one.publish(0)
            bad = Worker("bad", Counting(100_000), settings, one.address)
            bad.engine.faults[1] = error
            await until(lambda: one.held("bad") == 0)
            ticket = one.dispatcher.submit(group(0))
            await until(lambda: 0 in bad.engine.last)
            await one.publish(1)
            with pytest.raises(WeightsError, match=str(error)):
                await bad.life
            assert bad.engine.loads == loads and bad.engine.cancelled == 1
            assert one.quarantined == [("bad", str(error))]
            assert one.fleet.quarantined == {"bad": str(error)}
            assert one.lost == [f"bad: quarantined: {error}"] and one.held("bad") == -2
            # Nothing that it had reported goes on elsewhere.
            good = Worker("good", Counting(5), settings, one.address)
            asked, rollouts, _ = await ticket
            assert asked.resume == () and one.dispatcher.tokens_resumed == 0
            assert one.again == [(0, 2, f"quarantined: {error}")]
            assert [r.versions.tolist() for r in rollouts] == [[1] * 5] * 2
            good.terminated.set()
            await good.life

    run(main)


def test_a_version_is_not_reported_before_it_is_proved():
    class Hasty(Counting):
        async def load_weights(self, version: WeightVersion) -> None:
            self.version = version.version
            if version.version == 1:
                await self.go.wait()
                raise WeightsMismatchError("its canary died")

    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            engine = Hasty(5)
            engine.go = asyncio.Event()
            worker = Worker("w", engine, settings, one.address)
            await until(lambda: one.held("w") == 0)
            await one.publish(1)
            await until(lambda: engine.version == 1)
            member = one.fleet.workers["w"]
            for _ in range(2):
                seen = member.last_seen
                await until(lambda s=seen: member.last_seen > s)
                assert member.version == 0
            engine.go.set()
            with pytest.raises(WeightsMismatchError):
                await worker.life
            assert member.version == 0 and one.quarantined == [("w", "its canary died")]

    run(main)


def test_a_quarantined_process_stays_out_and_one_started_anew_may_join():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            bad = Worker("w", Counting(5), settings, one.address)
            bad.engine.faults[0] = WeightsMismatchError("not what was published")
            with pytest.raises(WeightsMismatchError):
                await bad.life
            same = Worker("w", Counting(5), settings, one.address)  # the same process, this one
            with pytest.raises(WorkerError, match="quarantined: not what was published"):
                await same.life
            assert one.fleet.workers == {}
            request = pb.RegisterRequest(
                worker="w",
                address="127.0.0.1:1",
                slots=8,
                config_hash="abc",
                version=0,
                process="p",
            )
            reply = await one.fleet.Register(request, None)
            assert reply.accepted and one.held("w") == -1  # it is yet to prove itself
            assert one.fleet.quarantined == {"w": "not what was published"}

    run(main)


def test_what_is_read_after_a_quarantine_is_not_accepted():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            worker = Worker("w", Counting(5, every=5), settings, one.address)
            await until(lambda: one.held("w") == 0)
            member = one.fleet.workers["w"]
            generate = member.stub.Generate

            async def late(*args: Any, **kwargs: Any) -> Any:
                async for reply in generate(*args, **kwargs):
                    request = pb.DeregisterRequest(
                        worker="w", quarantine="a canary died", process=PROCESS
                    )
                    await one.fleet.Deregister(request, None)
                    yield reply

            member.stub.Generate = late
            ticket = one.dispatcher.submit(group(0))
            await until(lambda: one.again)
            assert one.again == [(0, 2, "quarantined: a canary died")] and not ticket.done()
            # The process itself has not heard of it yet; it asks to be registered and gives up.
            with pytest.raises(WorkerError, match="quarantined: a canary died"):
                await worker.life

    run(main)


# --- a trainer process that is started again ----------------------------------------------------


def port_of(one: Trainer) -> int:
    return int(one.address.rsplit(":", 1)[1])


@pytest.mark.parametrize("number", [5, 7, 9])  # lower than what the worker holds, the same, higher
def test_a_worker_outlives_its_trainer_and_loads_the_new_ones_weights(number):
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(7)
            worker = Worker("w", Counting(5), settings, one.address)
            await until(lambda: one.held("w") == 7)
        async with trainer(settings, port=port_of(one)) as two:
            versions = []
            ready = two.fleet._on_ready
            two.fleet._on_ready = lambda w: (versions.append(w.version), ready(w))
            await until(lambda: two.held("w") == -1)
            ticket = two.dispatcher.submit(group(0))
            for _ in range(3):  # heartbeats: it holds 7, and does not say so
                seen = two.fleet.workers["w"].last_seen
                await until(lambda s=seen: two.fleet.workers["w"].last_seen > s)
                assert two.held("w") == -1 and not worker.engine.asked
            await two.publish(number, restart=True)
            _, rollouts, _ = await ticket
            assert worker.engine.loads == [7, number] and versions == [number]
            assert [r.versions.tolist() for r in rollouts] == [[number] * 5] * 2
            await two.publish(number + 1)
            await until(lambda: two.held("w") == number + 1)
            worker.terminated.set()
            await worker.life

    run(main)


def test_a_parameter_server_that_outlives_the_trainer_does_not_serve_its_versions():
    async def main():
        settings = section()
        store = ParameterServer(NoBytes(), keep=4, lease_s=10)
        async with trainer(settings) as apart:  # its parameter server stands alone
            server = grpc.aio.server(options=SERVER_OPTIONS)
            store.add_to(server)
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            apart.parameters, apart.fleet._parameter_server = store, address
            for number in (6, 7):
                await apart.publish(number)
            old = Worker("old", Counting(5), settings, apart.address)
            await until(lambda: apart.held("old") == 7)
        async with trainer(settings, port=port_of(apart)) as two:
            two.parameters, two.fleet._parameter_server = store, address
            new = Worker("new", Counting(5), settings, two.address)
            await until(lambda: two.held("old") == two.held("new") == -1)
            for name in ("old", "new"):
                seen = two.fleet.workers[name].last_seen
                await until(lambda n=name, s=seen: two.fleet.workers[n].last_seen > s + 0.3)
            assert (old.engine.loads, new.engine.loads) == ([7], [])
            await two.publish(5, restart=True)
            await until(lambda: two.held("old") == two.held("new") == 5)
            assert set(new.engine.loads) == {5} and set(old.engine.loads) == {7, 5}
            await two.publish(6)
            await until(lambda: two.held("old") == two.held("new") == 6)
            for worker in (old, new):
                worker.terminated.set()
                await worker.life
        await store.close()
        await server.stop(None)

    run(main)


def test_a_load_that_a_new_trainer_overtakes_counts_for_nothing():
    class Slow(Counting):
        async def load_weights(self, version: WeightVersion) -> None:
            if version.version == 7:
                self.begun.set()
                await self.go.wait()
            await super().load_weights(version)

    async def main():
        settings = section()
        engine = Slow(5)
        engine.begun, engine.go = asyncio.Event(), asyncio.Event()
        async with trainer(settings) as one:
            await one.publish(7)
            worker = Worker("w", engine, settings, one.address)
            await engine.begun.wait()
        async with trainer(settings, port=port_of(one)) as two:
            versions = []
            two.fleet._on_ready = lambda w: versions.append(w.version)
            await until(lambda: two.held("w") == -1)
            engine.go.set()
            seen = two.fleet.workers["w"].last_seen
            await until(lambda: two.fleet.workers["w"].last_seen > seen + 0.3)
            assert two.held("w") == -1
            await two.publish(2, restart=True)
            await until(lambda: two.held("w") == 2)
            assert versions == [2]
            worker.terminated.set()
            await worker.life

    run(main)


# --- weights that cannot be loaded, and processes that do not belong here -------------------------


def test_nothing_is_generated_between_a_mismatch_and_the_leases_release():
    engine = Counting(100_000)
    generating: list[bool] = []

    class Watched(ParameterServer):
        async def Release(self, request: Any, context: Any) -> Any:
            generating.append(engine.cancelled == 0)
            return await super().Release(request, context)

    async def main():
        settings = section(**CONTINUE)
        async with trainer(settings, parameters=Watched(NoBytes(), keep=2, lease_s=10)) as one:
            await one.publish(0)
            worker = Worker("w", engine, settings, one.address)
            await until(lambda: one.held("w") == 0)
            one.dispatcher.submit(group(0))
            await until(lambda: 0 in engine.last)
            engine.faults[1] = WeightsMismatchError("a canary died")
            await one.publish(1)
            with pytest.raises(WeightsMismatchError):
                await worker.life
            assert generating == [True, False]

    run(main)


def member(settings: RlaxSection, address: str, name: str = "w") -> Member:
    return Member(
        name=name,
        address="127.0.0.1:1",
        controller=address,
        engine=Counting(5),
        section=settings,
        config_hash="abc",
    )


def test_a_quarantine_is_told_until_it_is_heard():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            bad = member(settings, one.address)
            await bad.register()
            heard: list[str] = []
            deregister = one.fleet.Deregister

            async def busy(request: pb.DeregisterRequest, context: Any) -> Any:
                heard.append(request.quarantine)
                if len(heard) < 3:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
                return await deregister(request, context)

            one.fleet.Deregister = busy
            await one.server.stop(None)
            one.server = grpc.aio.server(options=SERVER_OPTIONS)
            rpc.add_FleetServicer_to_server(one.fleet, one.server)
            one.server.add_insecure_port(one.address)
            await one.server.start()
            bad.quarantine = "a canary died"
            await bad.leave()
            assert heard == ["a canary died"] * 3 and one.quarantined == [("w", "a canary died")]

    run(main)


def test_a_process_that_was_rejected_does_not_deregister_its_namesake():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            good, stranger = member(settings, one.address), member(settings, one.address)
            await good.register()
            stranger._config_hash = "xyz"
            with pytest.raises(WorkerError, match="another config"):
                await stranger.register()
            await stranger.leave()
            assert one.held("w") == -1 and one.lost == []
            await good.leave()
            assert one.lost == ["w: left"]

    run(main)


def test_a_worker_without_proved_weights_takes_no_groups():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            worker = Worker("w", Counting(5), settings, one.address)
            await until(lambda: one.held("w") == -1)
            call = one.fleet.workers["w"].stub.Generate(
                pb.GenerateRequest(groups=[request_to_proto(group(0))]), timeout=LIMIT_S
            )
            with pytest.raises(grpc.aio.AioRpcError, match="holds no weights yet") as failure:
                await call.read()
            assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
            worker.terminated.set()
            await worker.life

    run(main)


def test_a_draining_worker_does_not_register_again():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            leaving = member(settings, one.address)
            await leaving.register()
            leaving.draining = True
            beats = asyncio.ensure_future(leaving.heartbeat())
            await until(lambda: one.fleet.workers["w"].draining)
            one.fleet.lose(one.fleet.workers["w"], "a hiccup")
            await asyncio.sleep(4 * settings.deadlines.heartbeat_s)
            assert one.fleet.workers == {} and not beats.done()
            beats.cancel()
            await leaving.leave()

    run(main)


def test_a_mismatch_ends_the_worker_also_if_its_trainer_is_restarted_meanwhile():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            bad = member(settings, one.address)

            async def load(version: WeightVersion) -> None:
                bad._restarted.set()
                raise WeightsMismatchError("a canary died")

            bad._engine.load_weights = load
            with pytest.raises(WeightsMismatchError, match="a canary died"):
                await bad.live()
            assert bad.quarantine == "a canary died"
            await bad.leave()

    run(main)


def test_what_ended_the_following_is_seen_before_a_restart_of_the_trainer():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            worker = member(settings, one.address)

            async def follow(client: Any) -> None:
                worker._restarted.set()
                raise DeadlineError("loading a weight version", 1, "rlax.deadlines.weights_s")

            worker._follow = follow
            with pytest.raises(DeadlineError):
                await worker.live()
            await worker.leave()

    run(main)
