"""A parameter server or its publisher is started again: what readers see, and what is kept."""

import asyncio

import doors
import pytest
from parameter_servers import Deleted, client_of, serving, version

from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.client import ParameterServerClient


def restarted(number):
    return make_version(number, f"/w/again-{number}")


@pytest.mark.parametrize("first", [3, 6])  # lower, and the very same
async def test_watchers_hear_of_a_restart_whatever_they_have_seen(first):
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


async def test_a_watch_survives_a_restarted_server(tmp_path):
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
