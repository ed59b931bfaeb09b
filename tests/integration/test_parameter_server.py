"""The parameter server over real gRPC on loopback, in this process and in one of its own."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from runs import free_port

from rlax_plugin.errors import DeadlineError, WeightsError
from rlax_plugin.rpc.wire import SERVER_OPTIONS
from rlax_plugin.types import Canary, TensorSpec, WeightVersion
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.service import ParameterServer

LIMIT_S = 60.0


def version(number):
    tensors = {"w": TensorSpec((2, 3), "bfloat16", 4000000000 + number)}
    return WeightVersion(version=number, step=number, path=f"/w/{number}", tensors=tensors)


class Deleted:
    """A store that only notes what is deleted."""

    def __init__(self):
        self.paths, self._lock = [], threading.Condition()

    def delete(self, path):
        with self._lock:
            self.paths.append(path)
            self._lock.notify_all()

    async def wait_for(self, count):
        """Until ``count`` paths are deleted."""

        def wait():
            with self._lock:
                assert self._lock.wait_for(lambda: len(self.paths) >= count, LIMIT_S)

        await asyncio.to_thread(wait)
        return list(self.paths)


@asynccontextmanager
async def serving(store, *, keep=2, lease_s=60.0, port=0, **kwargs):
    service = ParameterServer(store, keep=keep, lease_s=lease_s, **kwargs)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service.add_to(server)
    port = server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
    await server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        await service.close()
        await server.stop(None)


@asynccontextmanager
async def client_of(address, rpc_s=60.0):
    client = ParameterServerClient(address, rpc_s=rpc_s)
    try:
        yield client
    finally:
        await client.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


def test_latest_is_what_was_published_with_every_field():
    async def main():
        async with serving(Deleted()) as (service, address), client_of(address) as client:
            assert await client.latest() is None
            await service.publish(version(0))
            assert await client.latest() == version(0)
            await client.publish(version(1))
            assert await client.latest() == version(1) == service.latest
            with pytest.raises(WeightsError, match="version 1 already is"):
                await client.publish(version(1))
            with pytest.raises(WeightsError, match="version 1 already is"):
                await service.publish(version(0))

    run(main())


def test_retired_versions_are_deleted_and_leased_ones_are_not():
    async def main():
        store = Deleted()
        async with serving(store, keep=2) as (service, address), client_of(address) as client:
            await service.publish(version(0))
            async with client.acquire(0) as held, client.acquire() as also_held:
                assert held == also_held == version(0)
                for number in range(1, 5):
                    await service.publish(version(number))
                assert await store.wait_for(2) == ["/w/1", "/w/2"]
                async with client.acquire() as newest:
                    assert newest == version(4)
            assert await store.wait_for(3) == ["/w/1", "/w/2", "/w/0"]
            with pytest.raises(WeightsError, match="asked for version 0; there is: 3, 4"):
                async with client.acquire(0):
                    pass

    run(main())


class Steady:
    """A clock on which no pause of this process is longer than a second."""

    def __init__(self):
        self._seen_s = self._now_s = time.monotonic()

    def __call__(self):
        seen_s, self._seen_s = self._seen_s, time.monotonic()
        self._now_s += min(self._seen_s - seen_s, 1.0)
        return self._now_s


def test_a_lease_is_renewed_while_it_is_held_and_expires_when_its_reader_dies():
    async def main():
        store = Deleted()
        async with (
            serving(store, keep=1, lease_s=2) as (service, address),
            client_of(address) as client,
            client_of(address) as dying,
        ):
            service._table._clock = Steady()
            await service.publish(version(0))
            await service.publish(version(1))
            await store.wait_for(1)
            async with client.acquire(1):
                dead = dying.acquire(1)
                await dead.__aenter__()
                await service.publish(version(2))
                await dying._channel.close()  # no release, and renewals fail from now on
                await asyncio.sleep(4.5)  # more than two lives of a lease
                assert store.paths == ["/w/0"]
            # Released by the living, expired for the dead.
            assert await store.wait_for(2) == ["/w/0", "/w/1"]

    run(main())


def test_an_expired_lease_lets_go_without_another_call():
    """The version is deleted, and first taken off the record of those that are there."""
    recorded: list[str] = []

    async def main():
        store = Deleted()
        async with serving(store, keep=1, lease_s=2.0, record=recorded.append) as (
            service,
            address,
        ):
            service._table._clock = Steady()
            client = ParameterServerClient(address, rpc_s=60.0)
            await service.publish(version(0))
            dead = client.acquire(0)
            await dead.__aenter__()
            await service.publish(version(1))
            await client._channel.close()
            assert await store.wait_for(1) == ["/w/0"]

    run(main())
    found = [[v["version"] for v in json.loads(text)["versions"]] for text in recorded]
    assert found == [[0], [0, 1], [1]]


def test_watchers_see_versions_in_order_from_where_they_stand():
    async def main():
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

    run(main())


def test_a_slow_watcher_skips_to_the_newest():
    async def main():
        async with (
            serving(Deleted()) as (service, address),
            client_of(address) as slow,
            client_of(address) as quick,
        ):
            await service.publish(version(0))
            slowly, quickly = slow.watch(), quick.watch()
            assert (await anext(slowly)).version == (await anext(quickly)).version == 0
            for number in range(1, 6):
                await service.publish(version(number))
                assert (await anext(quickly)).version == number
            # Both streams run in this process: the slow one's messages are here as well, and
            # one more published version arrives behind them.
            await service.publish(version(6))
            assert (await anext(quickly)).version == 6
            rest = [(await anext(slowly)).version]
            while rest[-1] < 6:
                rest.append((await anext(slowly)).version)
            assert rest == sorted(rest) and len(rest) < 6
            await slowly.aclose()
            await quickly.aclose()

    run(main())


def test_a_watch_survives_a_restarted_server_and_ends_with_its_client(tmp_path):
    async def main():
        index = tmp_path / "state" / "versions.json"
        async with serving(Deleted(), index=index) as (service, address):
            client = ParameterServerClient(address, rpc_s=60.0)
            watch = client.watch()
            await service.publish(version(0))
            await service.publish(version(1))
            while (await anext(watch)).version < 1:
                pass
        following = asyncio.ensure_future(anext(watch, None))
        store = Deleted()
        port = int(address.rsplit(":", 1)[1])
        async with serving(store, index=index, port=port) as (service, _):
            assert service.latest == version(1)  # remembered, with its tensors
            await service.publish(version(2))
            assert (await following).version == 2
            assert await store.wait_for(1) == ["/w/0"]
            ended = asyncio.ensure_future(anext(watch, None))
            await asyncio.sleep(0)
            await client.close()
            assert await ended is None

    run(main())


def test_a_failed_deletion_is_reported_and_stops_nothing(caplog):
    class Broken(Deleted):
        def delete(self, path):
            super().delete(path)
            raise WeightsError(f"cannot delete {path}")

    async def main():
        store = Broken()
        async with serving(store, keep=1) as (service, _):
            for number in range(3):
                await service.publish(version(number))
            assert await store.wait_for(2) == ["/w/0", "/w/1"]
        assert "cannot delete /w/1" in caplog.text

    run(main())


def test_no_call_waits_without_a_deadline():
    async def main():
        async with client_of("127.0.0.1:1") as client:  # rejected
            with pytest.raises(WeightsError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
                await client.latest()
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        async with client_of(f"127.0.0.1:{port}", rpc_s=0.2) as client:
            with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.rpc_s"):
                async with client.acquire():
                    pass
        silent.close()

    run(main())


SERVER = """
    import asyncio, shutil, sys
    from pathlib import Path
    from rlax_plugin.weights.service import serve_parameter_server

    class Store:
        delete = staticmethod(shutil.rmtree)

    asyncio.run(serve_parameter_server("127.0.0.1", 0, Store(), 1, 60.0,
        lambda address: print(address, flush=True), index=Path(sys.argv[1]) / "index.json"))
"""


def test_nothing_is_deleted_under_two_readers(tmp_path):
    """The server in a process of its own; versions come as fast as they can, one is kept."""
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.weights.host_fingerprint import fingerprint_numpy

    last, store = 20, OrbaxStore()
    like = {f"w{i}": np.zeros((64, 64), np.float32) for i in range(8)}

    async def publish(client, number):
        arrays = {name: np.full_like(a, number + i) for i, (name, a) in enumerate(like.items())}
        path = str(tmp_path / f"{number}")
        await asyncio.to_thread(store.save, path, arrays)
        tensors = {
            name: TensorSpec(arrays[name].shape, "float32", int(value))
            for name, value in fingerprint_numpy(arrays).items()
        }
        await client.publish(WeightVersion(number, number, path, tensors))

    async def read(client, first):
        held = []
        async for newest in client.watch():
            try:
                async with client.acquire(newest.version) as version:
                    loaded = await asyncio.to_thread(store.load, version.path, like)
            except WeightsError as error:
                # Replaced between its announcement and the acquisition; never while it is held.
                assert "asked for version" in str(error)
                continue
            prints = fingerprint_numpy(loaded)
            assert {n: int(v) for n, v in prints.items()} == {
                n: t.fingerprint for n, t in version.tensors.items()
            }
            held.append(version.version)
            first.set()
            if held[-1] == last:
                return held

    async def main(address):
        async with client_of(address) as one, client_of(address) as two:
            started = [asyncio.Event(), asyncio.Event()]
            readers = [
                asyncio.ensure_future(read(client, event))
                for client, event in zip((one, two), started, strict=True)
            ]
            await publish(one, 0)
            for event in started:
                await event.wait()
            for number in range(1, last + 1):
                await publish(one, number)
            return await asyncio.gather(*readers)

    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = server.stdout.readline().strip()
        for held in run(main(address)):
            assert held == sorted(set(held)) and held[0] == 0 and held[-1] == last
            assert len(held) > 2
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT_S)
        assert server.returncode == 0
    finally:
        server.kill()
        server.stdout.close()
    # keep = 1: all but the newest are gone, and a restarted server would know it.
    assert sorted(p.name for p in tmp_path.iterdir()) == [str(last), "index.json"]
    known = json.loads((tmp_path / "index.json").read_text())["versions"]
    assert known[-1]["version"] == last


def restarted(number):
    return WeightVersion(version=number, step=number, path=f"/again/{number}")


def test_a_trainer_that_starts_again_may_publish_lower_numbers():
    async def main():
        store = Deleted()
        async with serving(store, keep=3) as (_, address), client_of(address) as client:
            for number in range(5, 9):
                await client.publish(version(number))
            assert await store.wait_for(1) == ["/w/5"]
            with pytest.raises(WeightsError, match="version 8 already is"):
                await client.publish(restarted(7))
            async with client.acquire(8) as held:
                await client.publish(restarted(7), restart=True)
                assert await store.wait_for(2) == ["/w/5", "/w/7"]  # 8 is being read
                assert held.path == "/w/8" and (await client.latest()).path == "/again/7"
                with pytest.raises(WeightsError, match="asked for version 8; there is: 6, 7"):
                    async with client.acquire(8):
                        pass
            assert await store.wait_for(3) == ["/w/5", "/w/7", "/w/8"]
            await client.publish(restarted(8))
            async with client.acquire() as newest:
                assert newest.path == "/again/8"

    run(main())


@pytest.mark.parametrize("first", [3, 6, 7])  # lower, the very same, higher
def test_watchers_hear_of_a_restart_whatever_they_have_seen(first):
    async def main():
        async with serving(Deleted()) as (_, address), client_of(address) as client:
            await client.publish(version(6))
            watch, late = client.watch(), client.watch(after=6)
            assert (await anext(watch)).path == "/w/6"
            following = asyncio.ensure_future(anext(late))
            await client.publish(restarted(first), restart=True)
            assert (await anext(watch)).path == f"/again/{first}"
            await client.publish(restarted(first + 1))
            assert (await anext(watch)).path == f"/again/{first + 1}"
            assert (await following).path.startswith("/again/")
            # One that was away during the restart, too.
            async with client_of(address) as other:
                returning = other.watch(after=9)
                assert (await anext(returning)).path == f"/again/{first + 1}"
                await returning.aclose()
            await watch.aclose()
            await late.aclose()

    run(main())


def test_a_canary_reaches_readers_and_survives_a_restarted_server(tmp_path):
    index = tmp_path / "versions.json"
    logprobs = np.array([-0.1, -7.7], np.float32)
    canary = Canary(np.array([1, 2, 3], np.int32), logprobs, 0.5)

    async def main():
        async with serving(Deleted(), index=index) as (_, address), client_of(address) as client:
            await client.publish(WeightVersion(1, 1, "/w/1", {}, canary))
            async with client.acquire() as version:
                assert version.canary.logprobs.tobytes() == logprobs.tobytes()
        async with serving(Deleted(), index=index) as (service, _):
            held = service.latest.canary
            assert held.logprobs.tobytes() == logprobs.tobytes()
            assert held.tokens.tolist() == [1, 2, 3] and held.tolerance == 0.5

    run(main())
