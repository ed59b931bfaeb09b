"""The parameter server over real gRPC: publishing, leases, watching, deleting."""

import asyncio
import json
from dataclasses import replace

import doors
import grpc
import pytest
from parameter_servers import (
    LIMIT_S,
    CountsRenewals,
    Deleted,
    Steady,
    acquire_and_die,
    client_of,
    serving,
    version,
)
from waiting import eventually

from rlax_plugin.base.errors import DeadlineError, WeightsError, WeightsUnreadableError
from rlax_plugin.base.types import SAFETENSORS, VersionPart
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.leased_versions import MOST_LEASES_OF_ONE


async def test_latest_is_what_was_published_with_every_field():
    async with serving(Deleted()) as (service, address), client_of(address) as client:
        assert await client.latest() is None
        await service.publish(version(0))
        assert await client.latest() == version(0)
        await client.publish(version(1))
        assert await client.latest() == version(1) == service.latest
        with pytest.raises(WeightsError, match="after version 1"):
            await client.publish(make_version(1, "/w/other"))
        with pytest.raises(WeightsError, match="after version 1"):
            await service.publish(version(0))


async def test_a_server_inside_a_trainer_has_no_publish():
    store = Deleted()
    async with serving(store, published_in=None) as (service, address):
        await service.publish(version(0))
        async with client_of(address) as client:
            with pytest.raises(WeightsError, match="PERMISSION_DENIED"):
                await client.publish(make_version(1, "/etc"), restart=True)
            assert await client.latest() == version(0)
    assert store.paths == []


async def test_only_what_lies_in_the_runs_directory_is_published_and_deleted():
    store = Deleted()
    async with serving(store, keep=1) as (service, address), client_of(address) as client:
        await client.publish(version(0))
        for path in ("/etc", "/w", "/w/..", "/w/1/2", "w/1", ""):
            with pytest.raises(WeightsError, match="takes only what is directly in /w"):
                await client.publish(make_version(1, path))
        await client.publish(version(1))
        await store.wait_for(1)
        assert store.paths == ["/w/0"] and service.latest == version(1)


async def test_a_lease_is_renewed_while_it_is_held_and_expires_when_its_reader_dies():
    store = Deleted()
    served = serving(store, kind=CountsRenewals, keep=1, lease_s=0.6, clock=Steady(0.1))
    async with served as (service, address), client_of(address) as client:
        await service.publish(version(0))
        await service.publish(version(1))
        await store.wait_for(1)
        async with client.acquire(1):
            await acquire_and_die(address, 1)
            await service.publish(version(2))
            # A lease is renewed three times in its life.
            await eventually(lambda: service.renewed >= 7)
            assert store.paths == ["/w/0"]
        # Released by the living, expired for the dead.
        assert await store.wait_for(2) == ["/w/0", "/w/1"]


async def test_an_expired_lease_lets_go_without_another_call():
    """The version is deleted, and first taken off the record of those that are there."""
    recorded: list[str] = []

    store = Deleted()
    served = serving(store, keep=1, lease_s=2.0, record=recorded.append, clock=Steady())
    async with served as (service, address):
        await service.publish(version(0))
        await acquire_and_die(address, 0)
        await service.publish(version(1))
        assert await store.wait_for(1) == ["/w/0"]
    found = [[v["version"] for v in json.loads(text)["versions"]] for text in recorded]
    assert found == [[0], [0, 1], [1]]


async def test_watchers_see_versions_in_order_from_where_they_stand():
    async with serving(Deleted()) as (service, address), client_of(address) as client:
        await service.publish(version(0))
        await service.publish(version(1))
        seen, arrived = [], asyncio.Event()

        async def watch(after):
            async for found in client.watch(after):
                seen.append((after, found.version))
                arrived.set()

        watchers = [asyncio.ensure_future(watch(after)) for after in (-1, 0, 1)]

        async def until(count):
            while len(seen) < count:
                arrived.clear()
                await arrived.wait()

        await until(2)
        assert sorted(seen) == [(-1, 1), (0, 1)]
        for number in (2, 3):
            await service.publish(version(number))
            await until(2 + 3 * (number - 1))
        assert sorted(seen) == [
            *[(-1, 1), (-1, 2), (-1, 3)],
            *[(0, 1), (0, 2), (0, 3)],
            *[(1, 2), (1, 3)],
        ]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.wait(watchers)


async def test_no_call_waits_without_a_deadline():
    async with client_of("127.0.0.1:1") as client:  # rejected
        with pytest.raises(WeightsUnreadableError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
            await client.latest()
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with client_of(f"127.0.0.1:{port}", rpc_s=0.2) as client:
        with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.rpc_s"):
            async with client.acquire():
                pass
    silent.close()


async def test_leases_of_a_reader_and_watches_are_limited(monkeypatch):
    monkeypatch.setattr("rlax_plugin.weights.parameter_server.MOST_WATCHES", 1)
    request, watching = pb.AcquireRequest(version=0, holder="greedy"), pb.WatchRequest(after=-1)

    async with (
        serving(Deleted()) as (service, address),
        client_of(address) as other,
        connect(address, doors.SECRETS.of_worker) as connection,
    ):
        await service.publish(version(0))
        stub = rpc.ParameterServerStub(connection)
        for _ in range(MOST_LEASES_OF_ONE):
            await stub.Acquire(request, timeout=LIMIT_S)
        with pytest.raises(grpc.aio.AioRpcError, match="greedy holds 100 leases"):
            await stub.Acquire(request, timeout=LIMIT_S)
        async with other.acquire(0) as held:
            assert held == version(0)
        watch = stub.Watch(watching, timeout=LIMIT_S)
        assert (await watch.read()).version == 0
        with pytest.raises(grpc.aio.AioRpcError, match="1 watches are open"):
            await stub.Watch(watching, timeout=LIMIT_S).read()
        watch.cancel()
        assert (await anext(other.watch())).version == 0


async def test_a_reader_of_a_format_waits_for_a_version_that_has_it():
    part = VersionPart("huggingface", "/w/1-huggingface", format=SAFETENSORS)
    later = replace(version(1), converted=(part,))
    async with serving(Deleted()) as (service, address), client_of(address) as native:
        async with client_of(address, weights_format=SAFETENSORS) as reader:
            first = asyncio.ensure_future(anext(aiter(reader.watch())))
            await native.publish(version(1))
            with pytest.raises(WeightsError, match=r"in format safetensors; .*: none"):
                async with reader.acquire():
                    pass
            assert not first.done()
            await native.publish(later)
            assert await asyncio.wait_for(first, LIMIT_S) == later.of_format(SAFETENSORS)
            async with reader.acquire() as own, native.acquire() as other:
                assert (own.parts, other.parts) == ((part,), version(1).parts)
        with pytest.raises(WeightsError, match="takes only what is directly in /w"):
            elsewhere = replace(part, path="/etc")
            await native.publish(replace(version(2), converted=(elsewhere,)))
        async with client_of(address, weights_format="gguf") as reader:
            with pytest.raises(WeightsError, match="no version has the format gguf"):
                async with reader.acquire():
                    pass
    assert service.latest == later
