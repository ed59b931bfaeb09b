"""A worker's membership in a run: it registers, heartbeats, and follows the weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping

import grpc

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import (
    DeadlineError,
    WeightsError,
    WeightsMismatchError,
    WeightsUnreadableError,
    WorkerError,
)
from rlax_plugin.base.liveness.ending import in_one_line
from rlax_plugin.base.liveness.machine import own_figures
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.fleet.capabilities import to_proto
from rlax_plugin.rollout.fleet.deadlines import while_loading
from rlax_plugin.rollout.fleet.package_versions import own_versions
from rlax_plugin.rollout.worker.colocated import OwnProcess
from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.rollout.worker.following import Following
from rlax_plugin.rollout.worker.joining import RunToJoin, join, leave, prepare
from rlax_plugin.rollout.worker.progress import load_within
from rlax_plugin.rollout.worker.speed_trial import measurable, try_out, try_when_idle
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.local_copies import LocalCopies, unseen
from rlax_plugin.weights.memory_copies import LetGoError, this_machine
from rlax_plugin.weights.verification import take_version

log = logging.getLogger("rlax.worker")

_MAX_DAMAGED = 3  # times that weights may be found damaged, before the fault is this worker's

PROCESS = uuid.uuid4().hex
"""Distinguishes this process from all others that may ever have its name, or its pid."""


class Member:
    """This worker's membership in a run.

    It outlives the trainer process: after another trainer process registers it, it counts as
    holding no weights until it has loaded a version that this one published, of any number.

    Args:
      endpoint: the address at which the controller calls this worker.
      on_quarantine: called as soon as ``quarantine`` is set, to stop generating.
      progress: of the open requests, from the engine's figures and True if weights are loaded.
      process: distinguishes this process from all others of its name.
      copies: receives the files of weights; None: the engine reads them at their path.
      memory: of which it can read copies of weights, as ``this_machine`` and ``THIS_PROCESS`` name
        it.
      incarnation: number of this start among those of its name; 0: they are not numbered.
      paused_s: see ``load_within``; None: the engine has devices of its own. If it has not, it is
        not tried out: a trial would wait for the trainer.

    Attributes:
      draining: reported to the controller, which then sends no more requests.
      loading: True while weights are being loaded.
      quarantine: the reason why this worker must not be trusted any more; empty if it may be.
    """

    def __init__(
        self,
        *,
        name: str,
        run: RunToJoin,
        endpoint: Endpoint | OwnProcess,
        engine: RolloutEngine,
        on_quarantine: Callable[[], None] = lambda: None,
        progress: Callable[[Mapping[str, float], bool], Iterable[pb.Progress]] = lambda *_: (),
        process: str = PROCESS,
        copies: LocalCopies | None = None,
        incarnation: int = 0,
        memory: str | None = None,
        paused_s: Callable[[], float] | None = None,
    ):
        self._name, self._run, self._endpoint, self._engine = name, run, endpoint, engine
        self._section: RlaxSection = run.section
        self._deadlines: Deadlines = run.section.deadlines
        self._on_quarantine, self._progress = on_quarantine, progress
        self._process, self._copies = process, copies
        self._memory = this_machine() if memory is None else memory
        self._tries, self._paused_s = paused_s is None, paused_s or (lambda: 0.0)
        self._own_incarnation = incarnation
        self._connection = connect(run.controller, run.secret)
        self._fleet = rpc.FleetStub(self._connection)
        self._as_member = self._fleet  # shows the token of the registration, once there is one
        self._beat, self._newer, self._restarted = (asyncio.Event() for _ in range(3))
        self._incarnation = self._parameter_server = ""
        self._registered = self.loading = False
        self._declared = pb.Capabilities()  # with which it has registered
        self._versions = Following(run.section.staleness.reload_every)
        self.draining, self.quarantine = False, ""
        self._damaged = ""  # path of the part that the quarantine is about

    @property
    def holds_weights(self) -> bool:
        """True if it holds verified weights of the trainer process that it is registered with."""
        return self._versions.held >= 0

    async def register(self) -> None:
        """Joins the run; raises the errors of ``join``."""
        self._registered = False
        called_with = self._endpoint.expect_trainer()
        request = pb.RegisterRequest(
            worker=self._name,
            address=self._endpoint.address,
            config_hash=self._run.config_hash,
            version=self._versions.held,
            process=self._process,
            capabilities=to_proto(self._engine.capabilities),
            token=called_with.token,
            certificate=called_with.certificate,
            versions=own_versions(self._section.plugins),
            incarnation=self._own_incarnation,
        )
        engine = self._section.rollouts.engine.name
        reply = await join(self._fleet, request, self._deadlines, engine, self._connection.diagnose)
        self._declared = request.capabilities
        self._registered = True
        self._as_member = rpc.FleetStub(self._connection.showing(called_with.token))
        self._told_to_keep(None)
        if reply.incarnation != self._incarnation:
            self._incarnation = reply.incarnation
            self._parameter_server = reply.parameter_server
            self._versions.forget()
            self._restarted.set()
        self._heard_of(reply.latest_version)

    @property
    def _keeps_pin(self) -> bool:
        """True if only the pinned version may be used until the controller releases it."""
        versions = self._versions
        return versions.pin is not None and versions.held == versions.pin and not self.loading

    def _told_to_keep(self, version: int | None) -> None:
        if self._versions.keep(version):
            self._newer.set()
            if version is None or self._keeps_pin:
                self._beat.set()  # else once it is loaded

    def _heard_of(self, version: int) -> None:
        if self._versions.confirm(version):
            self._newer.set()

    def _figures(self) -> dict[str, float]:
        return {**self._engine.health(), **self._endpoint.reading.figures()}

    async def report(self) -> pb.HeartbeatReply:
        """Sends one heartbeat."""
        figures = {**own_figures(), **self._figures()}
        request = pb.HeartbeatRequest(
            worker=self._name,
            version=self._versions.held,
            figures=figures,
            draining=self.draining,
            process=self._process,
            pin=self._versions.pin if self._keeps_pin else None,
            progress=self._progress(figures, self.loading),
        )
        if (declares := to_proto(self._engine.capabilities)) != self._declared:
            request.capabilities.CopyFrom(declares)
        return await self._as_member.Heartbeat(request, timeout=self._deadlines.rpc_s)

    async def heartbeat(self) -> None:
        """Sends heartbeats until the run is over.

        A worker that the controller forgot registers again, unless it drains.

        Raises:
          WorkerError: a later start of this worker has taken its place.
        """
        missed = 0
        while True:
            self._beat.clear()
            try:
                reply = await self.report()
            except grpc.aio.AioRpcError as error:
                missed += 1
                await self._connection.diagnose(error)
                why = describe(error, (self._deadlines.rpc_s, "rlax.deadlines.rpc_s"))
                log.warning("heartbeat failed (%d in a row): %s", missed, why)
                unknown = error.code() is grpc.StatusCode.UNAUTHENTICATED
                gone = missed >= 2 * self._deadlines.heartbeats_lost
                if (unknown or gone) and not self.draining:  # wait for one, or give up
                    await self.register()
                    missed = 0
                    continue
            else:
                missed = 0
                if reply.stop:
                    return
                if reply.fenced:
                    raise WorkerError(one_line(reply.fenced))
                if reply.known:
                    self._heard_of(reply.latest_version)
                    self._told_to_keep(reply.pin if reply.HasField("pin") else None)
                elif not self.draining:
                    await self.register()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._beat.wait(), self._deadlines.heartbeat_s)

    def want(self, version: int) -> None:
        """Notes that a request needs at least this version, even if no reload is due."""
        if self._versions.want(version):
            self._newer.set()

    async def live(self) -> None:
        """Registers, then sends heartbeats and follows the weights until the run is over.

        Raises:
          RlaxError: this worker can no longer take part.
        """
        await prepare(self._engine, self._deadlines, self._tell_preparing, self._paused_s)
        await self.register()
        log.info("worker %s serves on %s", self._name, self._endpoint.address)
        heartbeat = asyncio.ensure_future(self.heartbeat())
        try:
            while not heartbeat.done():
                await self._follow_trainer(heartbeat)
                if self.quarantine:  # found while something else ended the following
                    raise WeightsMismatchError(self.quarantine)
            heartbeat.result()
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _tell_preparing(self, doing: str) -> None:
        """Tells the controller what the engine does before it is ready; only its display shows it.

        Errors are only logged: ``register`` finds out whether the controller is there.
        """
        request = pb.ConfigRequest(worker=self._name, doing=doing)
        try:
            await self._fleet.Config(request, timeout=self._deadlines.rpc_s)
        except grpc.aio.AioRpcError as error:
            log.info("the controller was not told of %s: %s", doing, describe(error))

    async def _follow_trainer(self, heartbeat: asyncio.Task[None]) -> None:
        """Follows the weights of one trainer process; returns when it is replaced or gone."""
        self._restarted.clear()
        address, rpc_s = self._parameter_server, self._deadlines.rpc_s
        client = ParameterServerClient(
            address,
            self._run.secret,
            rpc_s,
            weights_format=self._engine.capabilities.weights_format,
        )
        watch = asyncio.ensure_future(self._watch(client))
        follow = asyncio.ensure_future(self.follow(client))
        restarted = asyncio.ensure_future(self._restarted.wait())
        beside = [watch]  # with which the following ends
        if self._tries:
            beside.append(asyncio.ensure_future(try_when_idle(self._engine, self._section)))
        tasks = (follow, restarted, *beside)
        try:
            await asyncio.wait({heartbeat, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if follow.done():
                follow.result()  # raises what ended it, perhaps a quarantine
            if restarted.done():
                log.info("another trainer process has started: its weights are loaded")
            else:
                for task in beside:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()

    async def _watch(self, client: ParameterServerClient) -> None:
        engine = self._engine
        memory = self._memory if engine.reads_memory and self._copies is None else ""
        async for version in client.watch(machine=memory):
            self._versions.seen(version)
            self._newer.set()
            if not self._versions.confirmed:
                self._beat.set()  # whether it is this trainer's, only the controller knows

    async def follow(self, client: ParameterServerClient) -> None:
        """Loads every ``reload_every``-th version, those that requests need, and the pinned one."""
        while True:
            await self._newer.wait()
            self._newer.clear()
            if not self._versions.due:
                continue
            incarnation = self._incarnation
            self.loading = True
            offered = self._versions.offered
            try:
                if offered is not None and not await self._load_from_memory(offered):
                    self._versions.decline(offered)
                    self._newer.set()
                    continue
                version = await self._load(client) if offered is None else offered.version
            except DeadlineError as error:
                taken = offered is not None and offered.by_reference  # it has one reader, once
                if taken or not self._versions.can_go_on:
                    raise
                held = self._versions.held
                log.error("%s; version %d stays in use, and this is tried again", error, held)
                self._newer.set()
                continue
            finally:
                self.loading = False
            measures = self._tries and measurable(self._engine, self._section)
            if not self.holds_weights and measures:
                await self._show_speed()
            if incarnation != self._incarnation:
                return  # just now: what was loaded is the earlier trainer's
            self._versions.held = version
            log.info("serving version %d", version)
            self._beat.set()  # groups go to those that hold the version they need

    async def _show_speed(self) -> None:
        """Lets the controller know how fast this worker decodes, before it gets requests.

        What the first trial may have compiled does not count, so its figures go in a heartbeat of
        their own; ``heartbeat`` heeds the replies, and what keeps one from being sent.
        """
        await try_out(self._engine, self._section)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.report()
        await try_out(self._engine, self._section)

    async def _load_from_memory(self, version: WeightVersion) -> bool:
        """Loads a version that has a copy in memory; False if it must be loaded from its path.

        Raises:
          WeightsError: it is the trainer's own arrays that cannot be used. There may be no files of
            it, so there is nothing to wait for.
        """
        try:
            await self._load_once(version)
            return True
        except LetGoError as error:  # there is a newer version, or this worker had it once
            problem, level = error, logging.INFO
        except WeightsError as error:  # whether the weights are damaged, the files will tell
            if version.by_reference:
                if isinstance(error, WeightsUnreadableError):
                    what = f"version {version.version}: the trainer's arrays cannot be used"
                    raise WeightsUnreadableError(f"{what}: {error}") from error
                self._enter_quarantine(str(error), version.parts[0].path)
                raise
            gone = isinstance(error, WeightsUnreadableError)  # such as replaced by the next one
            problem, level = error, logging.INFO if gone else logging.WARNING
        log.log(level, "version %d is not read in memory: %s", version.version, problem)
        return False

    async def _load(self, client: ParameterServerClient) -> int:
        """Loads the newest version, or the pinned one, under a lease.

        Returns:
          Its number.

        Raises:
          WeightsError: it is damaged or wrong; then this worker is quarantined.
          DeadlineError: it could not be read for ``weights_s``, for any reason. This does not mean
            that this worker is at fault.
        """
        pauses, tries, damaged = Pauses(self._deadlines.weights_s), 0, 0
        keys = ("startup_s", "weights_s")
        deadline_s, key = max((getattr(self._deadlines, k), f"rlax.deadlines.{k}") for k in keys)
        while True:
            async with client.hold_patiently(self._versions.pin, deadline_s, key) as held:
                tries += 1
                version = held.version
                try:
                    if self._copies is None:
                        await self._load_once(version)
                    else:
                        reading = self._endpoint.reading
                        await self._copies.load(client, held, reading, self._load_once)
                    return version.version
                except WeightsUnreadableError as error:
                    # As text, because its traceback would keep the weights.
                    problem = str(error) + (unseen(version) if self._copies is None else "")
                    if pauses.over:
                        raise DeadlineError(
                            f"reading version {version.version} ({tries} failed attempts, the last "
                            f"with: {problem})",
                            self._deadlines.weights_s,
                            "rlax.deadlines.weights_s",
                        ) from error
                except WeightsError as error:
                    damaged += 1
                    if damaged == _MAX_DAMAGED or isinstance(error, WeightsMismatchError):
                        # Before the lease is released: what is generated meanwhile would be void.
                        self._enter_quarantine(str(error), version.parts[0].path)
                        raise
                    problem = str(error)
            pause_s = pauses.next_s()
            log.error("weights were not loaded, trying again in %g s: %s", pause_s, problem)
            await asyncio.sleep(pause_s)

    def _enter_quarantine(self, reason: str, damaged: str) -> None:
        self.quarantine, self._damaged = reason, damaged
        self._on_quarantine()

    async def _load_once(self, version: WeightVersion) -> None:
        # The first time an engine without ``prepare`` may still be building its model.
        key = "startup_s" if self._engine.version < 0 else "weights_s"
        deadline_s: float = getattr(self._deadlines, key)
        what = f"loading version {version.version} from {', '.join(version.paths)}"
        finishes = self._section.rollouts.on_new_weights == "finish"
        if finishes:
            # The engine swaps once its running samples have ended, however long that takes while
            # they go on, which shows at least once in group_s.
            what += f" (of these {self._deadlines.group_s:g} s for samples that end before)"
            deadline_s += self._deadlines.group_s
        most = self._section.rollouts.max_new_tokens
        reading = self._endpoint.reading
        loading = take_version(self._engine, version, max_new_tokens=most, reading=reading)
        with while_loading(self._section, version, self._figures):
            try:
                await load_within(
                    self._engine,
                    loading,
                    deadline_s,
                    while_generating=finishes,
                    paused_s=self._paused_s,
                )
            except TimeoutError:
                raise DeadlineError(what, deadline_s, f"rlax.deadlines.{key}") from None

    async def leave(self, failure: Exception | None = None) -> None:
        """Leaves the run if it is a member; repeats a quarantine until it is received.

        Args:
          failure: that has ended this worker; None: none has.
        """
        if self._registered or self.quarantine:
            request = pb.DeregisterRequest(
                worker=self._name,
                quarantine=self.quarantine,
                process=self._process,
                damaged=self._damaged,
                error="" if failure is None else in_one_line(failure),
            )
            await leave(self._as_member, request, self._deadlines.rpc_s)
        await self._connection.close()
