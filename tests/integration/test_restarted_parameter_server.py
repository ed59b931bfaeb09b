"""A parameter server or its publisher is started again: what readers see, and what is kept."""

import asyncio

import doors
import numpy as np
import pytest
from parameter_servers import Deleted, client_of, run, serving, version

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import Canary
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.client import ParameterServerClient


def restarted(number):
    return make_version(number, f"/w/again-{number}")


def test_a_trainer_that_starts_again_may_publish_lower_numbers():
    async def main():
        store = Deleted()
        async with serving(store, keep=3) as (_, address), client_of(address) as client:
            for number in range(5, 9):
                await client.publish(version(number))
            assert await store.wait_for(1) == ["/w/5"]
            with pytest.raises(WeightsError, match="after version 8"):
                await client.publish(restarted(7))
            async with client.acquire(8) as held:
                await client.publish(restarted(7), restart=True)
                assert await store.wait_for(2) == ["/w/5", "/w/7"]  # 8 is being read
                assert held.paths == ("/w/8",) and (await client.latest()).paths == ("/w/again-7",)
                with pytest.raises(WeightsError, match="requested version 8; available: 6, 7"):
                    async with client.acquire(8):
                        pass
            assert await store.wait_for(3) == ["/w/5", "/w/7", "/w/8"]
            await client.publish(restarted(8))
            async with client.acquire() as newest:
                assert newest.paths == ("/w/again-8",)

    run(main())


@pytest.mark.parametrize("first", [3, 6, 7])  # lower, the very same, higher
def test_watchers_hear_of_a_restart_whatever_they_have_seen(first):
    async def main():
        async with serving(Deleted()) as (_, address), client_of(address) as client:
            await client.publish(version(6))
            watch, late = client.watch(), client.watch(after=6)
            assert (await anext(watch)).paths == ("/w/6",)
            following = asyncio.ensure_future(anext(late))
            await client.publish(restarted(first), restart=True)
            assert (await anext(watch)).paths == (f"/w/again-{first}",)
            await client.publish(restarted(first + 1))
            assert (await anext(watch)).paths == (f"/w/again-{first + 1}",)
            assert (await following).paths[0].startswith("/w/again-")
            # One that was away during the restart, too.
            async with client_of(address) as other:
                returning = other.watch(after=9)
                assert (await anext(returning)).paths == (f"/w/again-{first + 1}",)
                await returning.aclose()
            await watch.aclose()
            await late.aclose()

    run(main())


def test_a_watch_survives_a_restarted_server(tmp_path):
    async def main():
        index = tmp_path / "state" / "versions.json"
        async with serving(Deleted(), index=index) as (service, address):
            client = ParameterServerClient(address, doors.SECRETS.of_trainer, rpc_s=60.0)
            watch = client.watch()
            await service.publish(version(0))
            await service.publish(version(1))
            while (await anext(watch)).version < 1:
                pass
        following = asyncio.ensure_future(anext(watch, None))
        store = Deleted()
        port = int(address.rsplit(":", 1)[1])
        async with serving(store, index=index, port=port, lease_s=0.2) as (service, _):
            assert service.latest == version(1)  # remembered, with its tensors
            await service.publish(version(2))
            assert (await following).version == 2
            assert await store.wait_for(1) == ["/w/0"]
            await watch.aclose()
            await client.close()

    run(main())


def test_a_canary_reaches_readers_and_survives_a_restarted_server(tmp_path):
    index = tmp_path / "versions.json"
    logprobs = np.array([-0.1, -7.7], np.float32)
    canary = Canary(np.array([1, 2, 3], np.int32), logprobs, 0.5)

    async def main():
        async with serving(Deleted(), index=index) as (_, address), client_of(address) as client:
            await client.publish(make_version(1, "/w/1", {}, canary))
            async with client.acquire() as version:
                assert version.canary.logprobs.tobytes() == logprobs.tobytes()
        async with serving(Deleted(), index=index) as (service, _):
            held = service.latest.canary
            assert held.logprobs.tobytes() == logprobs.tobytes()
            assert held.tokens.tolist() == [1, 2, 3] and held.tolerance == 0.5

    run(main())
