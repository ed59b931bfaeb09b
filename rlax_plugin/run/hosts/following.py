"""Another host's connection to host 0, for its trainer's thread and for its writer of weights."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import grpc
import numpy as np

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.loop_thread import LoopThread, result_within
from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import (
    ConfigError,
    DeadlineError,
    TrainingError,
    WeightsError,
    WeightsUnwritableError,
)
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import HostPlace
from rlax_plugin.config import Deadlines
from rlax_plugin.ports.orders import END, Order
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.ports.training import Decision, FollowerPort, NewWeights
from rlax_plugin.rollout.fleet.package_versions import own_versions
from rlax_plugin.rollout.worker.colocated import longest_call
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.secret import Access
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.rpc.transport.doors import Connection, connect
from rlax_plugin.run.hosts import wire
from rlax_plugin.run.hosts.leading import POLL_S
from rlax_plugin.weights.memory_copies import OwnArrays
from rlax_plugin.weights.publisher import fingerprints, of_this_host

log = logging.getLogger("rlax.hosts")

START = "start"
"""Kind of the first order, which has the canary's tokens."""

_HOST_S = "rlax.deadlines.host_s"
_RPC_KEY = "rlax.deadlines.rpc_s"
_LONGEST_REASON = 4000  # characters


class HostZero:
    """Calls of host 0, which are made again while it cannot be reached.

    Args:
      place: of this host.
      address: host:port of host 0's controller.
      most_bytes: limit for the arrays of an order.

    Attributes:
      start: identifies the start of host 0 that this host has joined, see ``Leader``.
      generates: see ``Leader``; of that start.
      ended: True once host 0 has said that it ends; calls are not made again then.
      failure: of this host's worker, which the wait for an order raises; None: it has not failed.
    """

    def __init__(
        self,
        place: HostPlace,
        address: str,
        secret: Access,
        deadlines: Deadlines,
        thread: LoopThread,
        most_bytes: int,
    ):
        self.place, self.address, self.secret = place, address, secret
        self.start, self.generates, self.ended = "", False, False
        self.failure: BaseException | None = None
        self.deadlines, self._thread, self._most_bytes = deadlines, thread, most_bytes
        self._connection = thread.run(self._connected(address, secret))
        self._stub = rpc.HostsStub(self._connection)

    @staticmethod
    async def _connected(address: str, secret: Access) -> Connection:
        return connect(address, secret)  # on the loop to which it belongs

    def join(self, config_hash: str, plugins: tuple[str, ...], process: str = "") -> str:
        """Joins the trainer; returns the identity of host 0's start.

        It tries once: the address may be that of an earlier start, and is then looked up again.

        Args:
          process: the same for all tries of this process; "": this is the only one.

        Raises:
          ConfigError: host 0 rejects this host.
          TrainingError: it cannot be reached.
        """
        request = pb.JoinRequest(
            host=self.place.index,
            hosts=self.place.count,
            coordinator=self.place.coordinator,
            config_hash=config_hash,
            versions=own_versions(plugins),
            process=process or secrets.token_hex(8),
        )
        reply = self._wait(lambda s: self._stub.Join(request, timeout=s), again_s=0.0)
        if not reply.accepted:
            raise ConfigError("--host", self.place.index, one_line(reply.reason, _LONGEST_REASON))
        self.start, self.generates = reply.start, reply.generates
        return self.start

    def order(self, number: int) -> Order:
        """Blocks until host 0 has given the order of this number.

        Raises:
          RlaxError: the worker of this host has failed.
        """
        request = pb.BatchRequest(host=self.place.index, number=number)

        async def ask(timeout_s: float) -> Order | None:
            call = self._stub.Batch(request, timeout=timeout_s)
            return await wire.read_order(call, number, self._most_bytes)

        limit_s = self._limit_s + self.deadlines.rpc_s * self._most_bytes / wire.PIECE_BYTES
        found: Order | None = None
        while found is None:
            if self.failure is not None:
                raise self.failure
            # None: it answered that there is no order yet, and its own deadlines count.
            found = self._wait(ask, limit_s)
        return found

    def decide(self, step: int) -> Decision | None:
        """Blocks until host 0 has decided what follows a step; None if it has ended training."""
        request = pb.DecisionRequest(host=self.place.index, step=step)
        while True:
            reply = self._wait(lambda s: self._stub.Decision(request, timeout=s))
            if reply.known:
                return Decision(reply.save, reply.stop)
            if reply.ended:
                return None

    def chunks(self, request: pb.ChunksRequest) -> pb.ChunksReply:
        """Says what was written of a version, and asks what is to be."""
        return self._wait(lambda s: self._stub.Chunks(request, timeout=s))

    def stop(self, failure: str = "") -> Future[Any]:
        """Asks host 0 to stop; returns at once.

        Args:
          failure: the error of this host; "": a signal arrived.
        """
        request = pb.StopRequest(host=self.place.index, failure=failure)
        work = self._call(lambda s: self._stub.Stop(request, timeout=s), self._limit_s)
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    def close(self) -> None:
        self._thread.run_last(self._connection.close(), self.deadlines.rpc_s)

    @property
    def _limit_s(self) -> float:
        """Limit of one call, which host 0 answers at the latest after ``POLL_S``."""
        return POLL_S + self.deadlines.rpc_s

    def _wait[T](
        self,
        ask: Callable[[float], Awaitable[T]],
        limit_s: float = 0.0,
        again_s: float | None = None,
    ) -> T:
        limit_s = limit_s or self._limit_s
        within_s = self.deadlines.host_s + 2 * limit_s  # of the call and its repetitions
        work = self._call(ask, limit_s, again_s)
        return result_within(work, self._thread.loop, within_s, self._late)

    def _late(self, given_s: float) -> DeadlineError:
        return DeadlineError(f"an answer of host 0 at {self.address}", given_s, _HOST_S)

    async def _call[T](
        self, ask: Callable[[float], Awaitable[T]], limit_s: float, again_s: float | None = None
    ) -> T:
        """Makes a call, and makes it again for a while if host 0 cannot be reached.

        Args:
          ask: makes it once, with this limit in seconds.
          again_s: seconds in which it is made again; None: ``host_s``.
        """
        pauses = Pauses(self.deadlines.host_s if again_s is None else again_s, 2.0)
        while True:
            began_s = time.monotonic()
            try:
                return await ask(limit_s)
            except grpc.aio.AioRpcError as error:
                await self._connection.diagnose(error)
                said = describe(error, (limit_s, _RPC_KEY))
                passing = error.code() in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.CANCELLED,
                )
                if not passing or self.ended or pauses.over:
                    raise TrainingError(f"host 0 at {self.address}: {said}") from error
                log.warning("no answer from host 0 after %.1f s: %s", _since(began_s), said)
            await asyncio.sleep(pauses.next_s())


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


class OwnChunks:
    """Writes this host's chunks of every version, beside the trainer's thread.

    Args:
      zero: host 0.
      store: the weight store.
      directory: the run's weights directory; nothing is written outside of it.
      deadline_s: ``rlax.deadlines.weights_s``.
    """

    def __init__(self, zero: HostZero, store: WeightStore, directory: str, deadline_s: float):
        self._zero, self._store, self._deadline_s = zero, store, deadline_s
        self._directory = directory.rstrip("/")
        self._worker = BackgroundWorker("chunks", most_waiting=1)
        self._pending: Future[None] | None = None

    def write(self, version: int, parts: Mapping[str, Arrays]) -> None:
        """Starts writing; one version is written at a time."""
        self.wait()
        self._pending = self._worker.submit(self._write_all, version, parts)

    def wait(self) -> None:
        """Returns once the version that was handed over is visible; raises its error."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.result(2 * self._deadline_s)
            except TimeoutError:
                if pending.done():
                    raise
                raise self._late("a version") from None

    def close(self) -> None:
        self._worker.end(self._deadline_s)

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"writing {what} together with the other hosts",
            self._deadline_s,
            "rlax.deadlines.weights_s",
        )

    def _write_all(self, version: int, parts: Mapping[str, Arrays]) -> None:
        for part, arrays in parts.items():
            self._write(version, part, arrays)

    def _write(self, version: int, part: str, arrays: Arrays) -> None:
        # Host 0 begins when the version before is visible, and has as long as this for each.
        end_s = time.monotonic() + 2 * self._deadline_s
        request = pb.ChunksRequest(host=self._zero.place.index, version=version, part=part)
        while not (reply := self._zero.chunks(request)).done:
            if time.monotonic() > end_s:
                raise self._late(f"version {version}")
            request = pb.ChunksRequest(host=self._zero.place.index, version=version, part=part)
            if not reply.directory:
                continue
            request.written = reply.directory
            try:
                self._check(reply.directory)
                request.chunks = self._store.write(reply.directory, arrays)
                reached(FaultPoint.FOLLOWER_CHUNKS_WRITTEN)
            except (WeightsError, OSError, DeadlineError) as error:
                log.error("chunks of version %d were not written: %s", version, error)
                request.failure = one_line(str(error))
                if isinstance(error, WeightsError) and not isinstance(
                    error, WeightsUnwritableError
                ):
                    self._zero.chunks(request)
                    raise

    def _check(self, directory: str) -> None:
        # The path of this host's own config may well have a "..", what follows it may not.
        *parent, name = _names(directory) or [""]
        outside = parent != _names(self._directory) or name == ".."
        if outside or directory[0] != self._directory[0]:  # one may be relative
            raise WeightsError(
                f"host 0 names {one_line(directory)} for chunks of weights, which is not directly "
                f"below {self._directory}: all hosts need the same rlax.weights.path, or the same "
                "base_output_directory"
            )


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


class EndedError(TrainingError):
    """Host 0 has ended training before this host did.

    Args:
      reason: its error; "": it has none.
    """

    def __init__(self, reason: str):
        super().__init__(f"host 0 has ended training{': ' if reason else ''}{reason}")
        self.reason = reason


class FollowedPort(FollowerPort):
    """Host 0 as the trainer's thread of another host sees it.

    Args:
      zero: a host 0 that this host has joined.
      chunks: writes this host's chunks of weights; None: weights are not written.
      devices: are given to the trainer with the first order of a step, until it waits for the next
        step's; None: it has devices of its own.
    """

    def __init__(self, zero: HostZero, chunks: OwnChunks | None, devices: Devices | None = None):
        self._zero, self._chunks, self._devices = zero, chunks, devices
        self._number, self._first = 0, True
        self._step_ended = False
        self._tokens: np.ndarray | None = None
        self.stopped = False

    @property
    def canary_tokens(self) -> np.ndarray:
        """See ``Publication``; waits for the first order."""
        if self._tokens is None:
            self._tokens = self.next_order().arrays["canary"]
        return self._tokens

    def next_order(self) -> Order:
        """See ``FollowerPort``; the first order is that of the canary's tokens.

        Raises:
          EndedError: there is no other order.
        """
        if self._devices is not None and self._step_ended:
            self._devices.rest()
        order = self._zero.order(self._number)
        self._number += 1
        if order.kind == END:
            self._zero.ended = True
            reason = one_line(order.settings.get("reason", ""), _LONGEST_REASON)
            raise EndedError(reason)
        if self._devices is not None and not self._devices.training:
            self._devices.train(*longest_call(self._devices, self._zero.deadlines))
        self._step_ended = False
        return order

    def take(self, weights: NewWeights) -> None:
        given = {name: arrays for name, arrays in weights.parts.items() if arrays is not None}
        if self._chunks is not None:
            self._chunks.wait()
        # Host 0 launches the same computation at this place; it alone needs the result.
        for arrays in given.values():
            fingerprints(arrays)
        first, self._first = self._first, False
        if self._devices is not None:
            if (here := of_this_host(weights, first)) is not None:
                OwnArrays.give(here, weights.step, self._zero.start)
            if first:
                self._devices.rest()  # the engine is built while the trainer compiles its step
        self._step_ended = True
        if self._chunks is not None:
            self._chunks.write(weights.step, given)

    def finish(self) -> None:
        """Returns once the last weights are visible, and what follows training has ended.

        This host generates until then, if it does at all.

        Raises:
          EndedError: what follows training has failed.
          RlaxError: the weights are not visible, or the worker of this host has failed.
        """
        if self._chunks is not None:
            self._chunks.wait()
        if self._devices is None or self.stopped:
            return
        self._devices.rest()
        try:
            self.next_order()
        except EndedError as end:
            if end.reason:
                raise

    def decide(self, step: int) -> Decision:
        while (decision := self._zero.decide(step)) is None:
            self.next_order()  # the last one raises the reason
        self.stopped = decision.stop
        return decision
