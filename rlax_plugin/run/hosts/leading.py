"""Host 0's side of a trainer over several hosts: orders, decisions, and words of the others."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from rlax_plugin.base.concurrency.changes import Changes
from rlax_plugin.base.errors import TrainingError, WeightsError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import HostPlace
from rlax_plugin.ports.orders import END, Followers, Order
from rlax_plugin.ports.training import Decision
from rlax_plugin.rollout.fleet.package_versions import PackageVersions
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.run.hosts import wire
from rlax_plugin.weights.memory_copies import THIS_PROCESS
from rlax_plugin.weights.shared_writes import SharedWrites

log = logging.getLogger("rlax.hosts")

POLL_S = 5.0
"""Seconds after which a call that waits is answered with nothing, and is made again."""

_MOST_WAITING = 1024  # orders of one host: far more than a step has


class Leader(Followers):
    """The orders for every other host, and the decision at the end of each step.

    Every order is kept until its host asks for the next one, so that a broken connection loses
    none.

    Args:
      place: of host 0.
      config_hash: of the run's config, see ``host_hash``.
      versions: rejects hosts with other packages.
      loop: the event loop of the service.
      note: shows one line to the user.
      generates: True if every host has a worker on its own devices.

    Attributes:
      generates: as given.
      start: identifies this start of the trainer, as ``THIS_PROCESS`` of host 0.
      note: as given.
      over: True once no orders and no decisions follow.
      sent_bytes: bytes of the arrays in all orders so far.
      writes: weight versions that the hosts write together; set before the first one.
      early: requests to stop that came before ``on_stop`` was set.
      on_stop: called on the event loop when another host asks for a stop: with its number, and why
        it has failed or "".
    """

    def __init__(
        self,
        place: HostPlace,
        config_hash: str,
        versions: PackageVersions,
        loop: asyncio.AbstractEventLoop,
        note: Callable[[str], None],
        generates: bool = False,
    ):
        self.place, self.generates = place, generates
        self._config_hash, self._versions, self.note = config_hash, versions, note
        self.start = THIS_PROCESS
        self._loop, self._changes = loop, Changes()
        self._lock = threading.Lock()
        self._orders: dict[int, deque[tuple[int, Order]]] = {
            host: deque() for host in range(1, place.count)
        }
        self._next = dict.fromkeys(self._orders, 0)
        self._joined: dict[int, str] = {}  # host -> its process
        self._ended: set[int] = set()  # those that have got their last order
        self._decided: tuple[int, Decision] | None = None
        self.over = False
        self.sent_bytes = 0
        self.writes: SharedWrites | None = None
        self.early: list[tuple[int, str]] = []
        self.on_stop: Callable[[int, str], None] = lambda *told: self.early.append(told)

    def tell(self, host: int, order: Order) -> None:
        with self._lock:
            waiting = self._orders[host]
            if len(waiting) >= _MOST_WAITING:
                raise TrainingError(f"host {host} does not take its orders: {len(waiting)} wait")
            waiting.append((self._next[host], order))
            self._next[host] += 1
            self.sent_bytes += wire.nbytes_of(order)
        self._loop.call_soon_threadsafe(self._changes.wake)

    def tell_all(self, order: Order) -> None:
        """Gives all other hosts the same order."""
        for host in self._orders:
            self.tell(host, order)

    def decided(self, step: int, decision: Decision) -> None:
        """Passes on the decision at the end of a step; called on the trainer's thread."""
        self._decided = step, decision
        self._loop.call_soon_threadsafe(self._changes.wake)

    def end(self, reason: str = "") -> None:
        """Tells all other hosts that no orders follow.

        Args:
          reason: the error with which training failed; "" if it did not.
        """
        self.over = True
        self.tell_all(Order(END, {"reason": reason}))

    async def all_joined(self) -> None:
        """Returns once all other hosts have joined."""
        while not await self._changes.until(lambda: not self.missing or None, POLL_S):
            pass  # its caller has a deadline

    @property
    def missing(self) -> list[int]:
        """The hosts that have not joined."""
        return sorted(self._orders.keys() - self._joined.keys())

    async def heard_the_end(self, within_s: float) -> None:
        """Returns once all hosts have got their last order, or after ``within_s``."""
        await self._changes.until(lambda: self._ended >= self._joined.keys() or None, within_s)

    # --- for the service, on the event loop -------------------------------------------------------

    def admission(self, request: pb.JoinRequest) -> str:
        """Returns the reason why a host cannot take part; "" if it takes part from now on."""
        place = self.place
        if request.host not in self._orders:
            return f"there is no host {request.host}: the hosts are 1 to {place.count - 1}"
        if request.hosts != place.count:
            return f"host 0 was started as one of {place.count} hosts, not of {request.hosts}"
        if request.coordinator != place.coordinator:
            said = one_line(request.coordinator)
            return f"host 0 was started with coordinator {place.coordinator}, not {said}"
        if request.config_hash != self._config_hash:
            return (
                f"its config has the hash {one_line(request.config_hash)}, that of host 0 "
                f"{self._config_hash}: start all hosts with the same config and arguments"
            )
        who = f"host {request.host}"
        if why := self._versions.rejection(who, request.versions, is_host=True):
            return why
        process = self._joined.setdefault(request.host, request.process)
        if process != request.process:
            return f"another process has joined as host {request.host} of this start already"
        self._changes.wake()
        return ""

    def joined(self, host: int) -> bool:
        """True if this host takes part."""
        return host in self._joined

    def asked_to_stop(self, host: int, failure: str) -> None:
        """Passes on another host's request to stop; one that has failed asks for nothing more."""
        if failure:
            self._ended.add(host)
            self._changes.wake()
        self.on_stop(host, failure)

    async def order(self, host: int, number: int) -> Order | None:
        """Returns the order of this number as soon as there is one; None after a while.

        Raises:
          TrainingError: that order is gone, or is not the host's next one.
        """
        waiting = self._orders[host]
        with self._lock:
            first = waiting[0][0] if waiting else self._next[host]
            if first + 1 == number and waiting:  # the one before has arrived
                waiting.popleft()
                first = number
        if number != first:
            raise TrainingError(f"order {number} of host {host} is not its next one, {first}")

        def look() -> Order | None:
            return waiting[0][1] if waiting else None

        return await self._changes.until(look, POLL_S)

    def got(self, host: int, order: Order) -> None:
        """Notes that all messages of an order were sent."""
        if order.kind == END:
            self._ended.add(host)
            self._changes.wake()

    async def decision(self, step: int) -> Decision | None:
        """Returns the decision at the end of a step as soon as it is made.

        Returns:
          None after a while, or at once if no decisions follow.

        Raises:
          TrainingError: a later step is decided already.
        """

        def look() -> Decision | None:
            if self._decided is None or self._decided[0] < step:
                return None
            if self._decided[0] > step:
                raise TrainingError(f"step {self._decided[0]} is decided already, not {step}")
            return self._decided[1]

        found = await self._changes.until(lambda: look() or self.over or None, POLL_S)
        return found if isinstance(found, Decision) else None


class HostsService(rpc.HostsServicer):
    """Answers the other hosts; a host that has not joined gets an error."""

    def __init__(self, leader: Leader):
        self._leader = leader

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        leader, known = self._leader, self._leader.joined(request.host)
        if reason := leader.admission(request):
            log.warning("host %d was rejected: %s", request.host, reason)
        elif not known:
            leader.note(f"host {request.host} of {leader.place.count} has joined")
        return pb.JoinReply(
            accepted=not reason, reason=reason, start=leader.start, generates=leader.generates
        )

    async def Batch(self, request: pb.BatchRequest, context: Any) -> AsyncIterator[pb.OrderPiece]:
        await self._joined(request.host, context)
        try:
            order = await self._leader.order(request.host, request.number)
        except TrainingError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        else:
            if order is not None:
                for piece in wire.pieces(request.number, order):
                    yield piece
                self._leader.got(request.host, order)

    async def Decision(self, request: pb.DecisionRequest, context: Any) -> pb.DecisionReply:
        await self._joined(request.host, context)
        try:
            found = await self._leader.decision(request.step)
        except TrainingError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if found is None:
            return pb.DecisionReply(ended=self._leader.over)
        return pb.DecisionReply(known=True, save=found.save, stop=found.stop)

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:
        await self._joined(request.host, context)
        failure = one_line(request.failure)
        log.warning("host %d asks for a stop: %s", request.host, failure or "a signal")
        self._leader.asked_to_stop(request.host, failure)
        return pb.StopReply()

    async def Chunks(self, request: pb.ChunksRequest, context: Any) -> pb.ChunksReply:
        await self._joined(request.host, context)
        if self._leader.writes is None:
            return pb.ChunksReply()
        try:
            return await self._leader.writes.answer(request, POLL_S)
        except WeightsError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _joined(self, host: int, context: Any) -> None:
        if not self._leader.joined(host):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"host {host} has not joined this start"
            )
