"""Workers behind a network that is slow, breaks connections, or loses them silently."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chaos.network import FINE, Conditions, Proxy
from worker_harness import STOP, Counting, Worker, group, section, trainer, until

from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.rpc.transport import doors
from rlax_plugin.rpc.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS


@asynccontextmanager
async def proxied(
    patch: pytest.MonkeyPatch, controller: str, conditions: Conditions = FINE, seed: int = 0
) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """Proxies before the controller, and before the worker ``far`` once there is one."""
    async with (
        Proxy(controller, conditions, seed=seed) as calling,
        Proxy("", conditions, seed=seed + 1) as called,
    ):

        class Elsewhere(Endpoint):
            def __init__(self, *args: Any, **kwargs: Any):
                super().__init__(*args, **kwargs)
                if kwargs["name"] == "far":
                    called.target, self.address = self.address, called.address

        patch.setattr("rlax_plugin.run.programs.serve.Endpoint", Elsewhere)
        yield calling, called


def quick_keepalive(patch: pytest.MonkeyPatch) -> None:
    """A connection that is silent is broken after 4 s, and not after 20; same options."""
    limits = [name for name, _ in CHANNEL_OPTIONS if name.endswith("timeout_ms")]
    quick = {"grpc.keepalive_time_ms": 1000} | dict.fromkeys(limits, 3000)
    patch.setattr(doors, "CHANNEL_OPTIONS", tuple((dict(CHANNEL_OPTIONS) | quick).items()))
    server = tuple((dict(SERVER_OPTIONS) | quick).items())
    patch.setattr(doors, "SERVER_OPTIONS", server)


async def test_groups_come_over_a_slow_line_that_breaks_again_and_again(monkeypatch) -> None:
    conditions = Conditions(delay_s=0.02, jitter_s=0.01, resets_s=(0.4, 1.0))

    settings = section()
    async with (
        trainer(settings) as one,
        proxied(monkeypatch, one.address, conditions, seed=1) as (calling, called),
    ):
        worker = Worker("far", Counting(30), settings, calling.address)
        await one.publish(0)
        numbers = itertools.count()
        while min(called.accepted, calling.accepted) < 4 or not one.lost:
            requests = [group(next(numbers)) for _ in range(10)]
            tries = [one.dispatcher.submit(request) for request in requests]
            done = await asyncio.gather(*tries)
            for request, completed in zip(requests, done, strict=True):
                assert completed.request.key == request.key
                assert [sample.seed for sample in completed.samples] == list(request.seeds)
                for sample in completed.samples:
                    assert sample.tokens.tolist() == [*range(29), STOP]
        assert one.lost and all(reason.startswith("far: ") for reason in one.lost)
        assert one.quarantined == [] and len(one.again) == one.dispatcher.reissued > 0
        calling.change(resets_s=None)
        await worker.leave()


@pytest.mark.parametrize("silent", ["calling", "called"])
async def test_groups_of_a_worker_whose_connection_is_half_open_go_elsewhere(
    monkeypatch, silent
) -> None:
    """No FIN and no RST says that it is gone: only what does not come does."""
    quick_keepalive(monkeypatch)

    settings = section({"heartbeats_lost": 20})  # 2 s: before the connection is broken
    async with trainer(settings) as one, proxied(monkeypatch, one.address) as (calling, called):
        watch = asyncio.ensure_future(one.fleet.watch())
        far = Worker("far", Counting(10**5), settings, calling.address)
        await one.publish(0)
        await until(lambda: one.held("far") == 0)
        asked = one.dispatcher.submit(group(1))
        await until(lambda: far.engine.asked)
        near = Worker("near", Counting(5), settings, one.address)
        await until(lambda: one.held("near") == 0)
        for connection in {"calling": calling, "called": called}[silent].connections:
            connection.half_open()
        completed = await asked
        assert [worker.name for worker in completed.workers][-1] == "near"
        assert completed.request.attempt == 2 and len(one.lost) == 1
        expected = "far: no heartbeat for" if silent == "calling" else "far: UNAVAILABLE"
        assert one.lost[0].startswith(expected)
        # Its next connection works, so it is a member again.
        await until(lambda: one.held("far") == 0)
        assert one.quarantined == []
        watch.cancel()
        await far.leave()
        await near.leave()
