"""Host 0 of a replay over several hosts: an endpoint for the other hosts, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.config.identity import host_hash
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.hosts.leading import HostsService, Leader
from rlax_plugin.records.endpoints import Endpoints, remove_endpoints, write_endpoints
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.doors import Door, listen
from rlax_plugin.rpc.run_secrets import run_secrets
from rlax_plugin.start.leading import led, wait_for_hosts
from rlax_plugin.types import HostPlace

KEPT = ("secrets.json", "worker-token.json", "host-token.json", "endpoints.json")
"""Files that host 0 of a replay leaves in its directory."""

_HOST = "127.0.0.1"


@contextmanager
def led_hosts(
    place: HostPlace | None, config: ResolvedConfig, directory: Path
) -> Iterator[Leader | None]:
    """Lets the other hosts of a replay join, within the block.

    Args:
      place: of this process, host 0.
      config: of the replay.
      directory: of the replay; the other hosts are processes of this machine and find it.

    Yields:
      The orders for the other hosts; None if there are none.
    """
    if place is None or not place.several:
        yield None
        return
    section = config.section
    secrets = run_secrets(directory)
    callers = secrets.callers()
    callers.admit(secrets.share("host"), "host")
    thread = LoopThread()
    digest, versions = host_hash(config.content), PackageVersions(own_versions(section.plugins))

    async def served() -> tuple[Leader, object]:
        leader = Leader(place, digest, versions, thread.loop, lambda line: None)
        door = Door(callers, secrets.identity)
        server, address = listen(_HOST, 0, door, "rlax.network.port")
        rpc.add_HostsServicer_to_server(HostsService(leader), server)
        await server.start()
        write_endpoints(directory, Endpoints(address, address))
        return leader, server

    try:
        leader, server = thread.run(served(), section.deadlines.startup_s)
        with led(leader, lambda host, failure: None, thread, section.deadlines.rpc_s):
            wait_for_hosts(leader, thread, section.deadlines.startup_s)
            yield leader
        thread.run_last(server.stop(None), section.deadlines.rpc_s)  # type: ignore[attr-defined]
    finally:
        remove_endpoints(directory)
        thread.close()
