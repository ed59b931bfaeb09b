"""However much a peer with a valid token asks for, or leaves open, servers keep a bounded part."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
from attacked_servers import Attacked, Start
from attacks import (
    FLEET,
    PARAMETERS,
    Honest,
    Peer,
    attack,
    check_parameters,
    check_process,
    joined,
    run,
)
from valid_messages import NUMBERS, heartbeat, registration

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.security.callers import with_token

TIMES = int(os.environ.get("RLAX_TEST_CALLS_TIMES", "1"))
"""Calls by hand: 4 for 20,000 registrations."""
OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def harmless(attacked: Attacked, most_mb: float) -> AsyncIterator[None]:
    """What happens inside makes the server grow by so much at most, and others notice nothing."""
    honest = await Honest.joined(attacked)
    before_mb = attacked.rss_mb
    yield
    await honest.still_there()
    await check_parameters(attacked, 3)
    check_process(attacked, before_mb, most_mb)


def test_a_process_registers_again_and_again(start: Start):
    attacked = start("controller")

    def registrations() -> Iterator[bytes]:
        while True:
            request = registration(attacked.worker.certificate, "again", "p")
            for number in range(60):
                name = f"side{number:050}"
                request.capabilities.side[name].dtype = "float32"
                request.capabilities.side[name].over = "sampled"
            yield request.SerializeToString()

    async def main() -> None:
        async with harmless(attacked, 100), Peer(attacked.address, attacked.worker) as peer:
            await attack(peer, FLEET + "Register", registrations(), 1000 * TIMES)

    run(main())


def test_heartbeats_bring_ever_new_requests_and_figures(start: Start):
    attacked = start("controller")

    def beats(name: str) -> Iterator[bytes]:
        beat = heartbeat(name, name)
        for number in itertools.count():
            del beat.progress[:]
            for one in range(300):
                key = pb.Key(group=1000 * number + one)
                beat.progress.add(key=key, attempt=one, moves=number)
            beat.figures.clear()
            beat.figures.update({f"figure{number}_{one}": float(one) for one in range(300)})
            yield beat.SerializeToString()

    async def main() -> None:
        name = f"busy{next(NUMBERS)}"
        async with harmless(attacked, 50), Peer(attacked.address, attacked.worker) as peer:
            made = registration(attacked.worker.certificate, name, name)
            peer.show(await joined(peer, made))
            codes, _ = await attack(peer, FLEET + "Heartbeat", beats(name), 500 * TIMES)
            assert codes == {OK: 500 * TIMES}

    run(main())


def test_ever_new_holders_of_leases(start: Start):
    attacked = start("controller")

    def holders() -> Iterator[bytes]:
        for number in itertools.count():
            request = pb.AcquireRequest(version=-1, holder=f"{number}" * 200)
            yield request.SerializeToString()

    async def main() -> None:
        async with harmless(attacked, 50), Peer(attacked.address, attacked.worker) as peer:
            codes, _ = await attack(peer, PARAMETERS + "Acquire", holders(), 3000 * TIMES)
            assert codes == {OK: 100, EXHAUSTED: 3000 * TIMES - 100}

    run(main())


def test_leases_that_nobody_holds(start: Start):
    attacked = start("controller")

    async def main() -> None:
        async with harmless(attacked, 50), Peer(attacked.address, attacked.worker) as peer:
            for method, kind in {"Renew": pb.RenewRequest, "Release": pb.ReleaseRequest}.items():
                ids = (kind(lease=f"{n}" * 100).SerializeToString() for n in itertools.count())
                await attack(peer, PARAMETERS + method, ids, 1500 * TIMES)

    run(main())


def test_watches_that_are_left_open(start: Start):
    attacked = start("controller")

    async def main() -> None:
        peers = [Peer(attacked.address, attacked.worker) for _ in range(10)]
        async with harmless(attacked, 150):
            watches = [
                asyncio.ensure_future(peer.call(PARAMETERS + "Watch", b"")) for peer in peers * 200
            ]
            await asyncio.sleep(3)
            print("open", sum(not one.done() for one in watches), f"{attacked.rss_mb:.0f}")
            await check_parameters(attacked, 3)
            await asyncio.gather(*(peer.close() for peer in peers))
            for one in watches:
                one.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    run(main())


def test_connections_without_a_call(start: Start):
    attacked = start("controller")
    host, port = attacked.address.rsplit(":", 1)

    async def main() -> None:
        async with harmless(attacked, 100):
            peers = []
            sockets = [socket.create_connection((host, int(port))) for _ in range(150)]
            for _ in range(150):
                peer = Peer(attacked.address, attacked.worker)
                peers.append(peer)
                peer._connection._channel.get_state(try_to_connect=True)
            await asyncio.sleep(3)
            print(f"{attacked.rss_mb:.0f}", peers[-1]._connection._channel.get_state())
            await check_parameters(attacked, 3)
            await asyncio.gather(*(peer.close() for peer in peers))
            for one in sockets:
                one.close()

    run(main())


def test_calls_without_a_message(start: Start):
    attacked = start("controller")

    async def main() -> None:
        async with harmless(attacked, 100):
            peers = [Peer(attacked.address, attacked.worker) for _ in range(10)]
            calls = []
            for peer in peers * 200:
                call = peer._connection._channel.stream_unary(PARAMETERS + "Latest")(
                    metadata=with_token(attacked.worker.token), timeout=60
                )
                calls.append(call)
            await asyncio.sleep(3)
            print("open", sum(not one.done() for one in calls), f"{attacked.rss_mb:.0f}")
            await check_parameters(attacked, 3)
            await asyncio.gather(*(peer.close() for peer in peers))

    run(main())


def test_ever_new_workers_register(start: Start):
    attacked = start("controller")

    def registrations() -> Iterator[bytes]:
        for number in itertools.count():
            request = registration(attacked.worker.certificate, f"new{number}", f"p{number}")
            yield request.SerializeToString()

    async def main() -> None:
        async with harmless(attacked, 400), Peer(attacked.address, attacked.worker) as peer:
            codes, _ = await attack(peer, FLEET + "Register", registrations(), 5000 * TIMES)
            assert codes == {OK: 5000 * TIMES}

    run(main())
