"""Host 0 of a trainer in a test: its real service, on an event loop and a port of its own."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from doors import SECRETS, server

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.types import HostPlace
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.run.hosts.following import HostZero
from rlax_plugin.run.hosts.leading import HostsService, Leader

COORDINATOR = "127.0.0.1:4713"
HASH = "0123456789ab"
TOKEN = Secret(new_token(), SECRETS.identity.certificate)
DEADLINES = Deadlines(host_s=60, rpc_s=60)


class Led:
    """A leader of two or more hosts, and connections of the others to it."""

    def __init__(self, leader: Leader, address: str, thread: LoopThread):
        self.leader, self.address, self.thread = leader, address, thread
        self.notes: list[str] = []
        self._open: list[HostZero] = []

    def host(self, index: int = 1, hosts: int = 2, coordinator: str = COORDINATOR, **more):
        """A connection of another host, which has not joined."""
        secret, deadlines = more.get("secret", TOKEN), more.get("deadlines", DEADLINES)
        place = HostPlace(index, hosts, coordinator)
        zero = HostZero(place, self.address, secret, deadlines, self.thread, 1 << 20)
        self._open.append(zero)
        return zero

    def joined(self, index: int = 1, hosts: int = 2) -> HostZero:
        """A connection of another host, which has joined."""
        zero = self.host(index, hosts)
        zero.join(HASH, ())
        return zero

    def close(self) -> None:
        for zero in self._open:
            zero.close()


@contextmanager
def led_by_host_0(hosts: int = 2) -> Iterator[Led]:
    """A leader whose service runs within the block."""
    thread, notes = LoopThread(), []

    async def served():
        callers = SECRETS.callers()
        callers.admit(TOKEN.token, "host")
        place = HostPlace(0, hosts, COORDINATOR)
        leader = Leader(
            place, HASH, PackageVersions(own_versions(())), asyncio.get_running_loop(), notes.append
        )
        served, address = server(0, callers)
        rpc.add_HostsServicer_to_server(HostsService(leader), served)
        await served.start()
        return leader, served, address

    leader, served_, address = thread.run(served(), 60)
    led = Led(leader, address, thread)
    led.notes = notes
    try:
        yield led
    finally:
        led.close()
        thread.run_last(served_.stop(None), 60)
        thread.close()
