"""A parameter server over real gRPC in this process, its clients, and a store that only notes."""

import asyncio
import functools
import threading
import time
from contextlib import asynccontextmanager

import doors
from runs import free_port

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TensorSpec
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.kept_versions import listed_in_index, record_versions
from rlax_plugin.weights.parameter_server import ParameterServer

LIMIT_S = 60.0  # for one wait; a whole test may have three times as long


def version(number):
    tensors = {"w": TensorSpec((2, 3), "bfloat16", 4000000000 + number)}
    return make_version(number, f"/w/{number}", tensors=tensors)


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


class CountsRenewals(ParameterServer):
    """Knows how often leases were renewed."""

    renewed = 0

    async def Renew(self, request, context):
        reply = await super().Renew(request, context)
        self.renewed += 1
        return reply


class Steady:
    """A clock on which no pause of this process between two looks is longer than ``most_s``."""

    def __init__(self, most_s=1.0):
        self._most_s = most_s
        self._seen_s = self._now_s = time.monotonic()

    def __call__(self):
        seen_s, self._seen_s = self._seen_s, time.monotonic()
        self._now_s += min(self._seen_s - seen_s, self._most_s)
        return self._now_s


@asynccontextmanager
async def serving(
    store, *, kind=ParameterServer, keep=2, lease_s=60.0, port=0, index=None, **kwargs
):
    # As a server of its own, to which trainers elsewhere publish; see ``version``.
    kwargs = {"published_in": "/w"} | kwargs
    if index is not None:
        files = RunFiles(index.parent)
        kwargs["record"] = functools.partial(record_versions, files, name=index.name)
        kwargs["listed"] = listed_in_index(index, kwargs["published_in"])
    service = kind(store, keep=keep, lease_s=lease_s, **kwargs)
    server, address = doors.server(port or free_port())
    service.add_to(server)
    await server.start()
    try:
        yield service, address
    finally:
        await service.close()
        await server.stop(None)


@asynccontextmanager
async def client_of(address, secret=doors.SECRETS.of_trainer, rpc_s=60.0, **kwargs):
    client = ParameterServerClient(address, secret, rpc_s=rpc_s, **kwargs)
    try:
        yield client
    finally:
        await client.close()


async def acquire_and_die(address, number):
    """A reader that takes a lease, and neither renews nor releases it."""
    async with connect(address, doors.SECRETS.of_worker) as connection:
        request = pb.AcquireRequest(version=number, holder="dead")
        await rpc.ParameterServerStub(connection).Acquire(request, timeout=LIMIT_S)
