"""``rlax serve``: the life of a worker process, from registration to draining."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from rlax_plugin.build import build_part
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.errors import DeadlineError, RlaxError, WeightsError, WorkerError
from rlax_plugin.loading import config_hash, load_section
from rlax_plugin.parameter_server import ParameterServerClient
from rlax_plugin.protocols import BuildContext, RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.wire import CHANNEL_OPTIONS, SERVER_OPTIONS, describe
from rlax_plugin.worker.service import RolloutService

log = logging.getLogger("rlax.worker")

PARENT = "RLAX_PARENT_PID"
"""Environment variable in which a launcher may say who it is, for ``--with-parent``."""

_LOAD_PAUSES_S = (0.5, 2.0)  # before weights that could not be loaded are tried again


def end_with_parent() -> None:
    """Asks Linux to end this process with the one that started it, even after a SIGKILL there."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    # Not "is it 1": in a container the trainer may well be process 1.
    parent = os.getppid()
    if int(os.environ.get(PARENT, parent)) != parent:
        raise RlaxError("the process that started this worker is already gone")


class Member:
    """This worker's membership in a run: it registers, heartbeats, and follows the weights."""

    def __init__(
        self,
        *,
        name: str,
        address: str,
        controller: str,
        engine: RolloutEngine,
        section: RlaxSection,
        config_hash: str,
    ):
        self._name, self._address, self._engine = name, address, engine
        self._section, self._config_hash = section, config_hash
        self._deadlines: Deadlines = section.deadlines
        self._channel = grpc.aio.insecure_channel(controller, options=CHANNEL_OPTIONS)
        self._fleet = rpc.FleetStub(self._channel)
        self._beat = asyncio.Event()
        self._newer = asyncio.Event()
        self._newest = self._wanted = -1
        self.draining = False

    async def register(self) -> str:
        """Joins the run; returns the parameter server's address.

        Raises:
          DeadlineError: no controller answered within ``startup_s``.
          WorkerError: the controller refused this worker.
        """
        request = pb.RegisterRequest(
            worker=self._name,
            address=self._address,
            slots=self._section.rollouts.slots,
            config_hash=self._config_hash,
            version=self._engine.version,
            pid=os.getpid(),
        )
        try:
            reply = await self._fleet.Register(
                request, timeout=self._deadlines.startup_s, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise DeadlineError(
                f"reaching the controller ({describe(error)})",
                self._deadlines.startup_s,
                "rlax.deadlines.startup_s",
            ) from error
        if not reply.accepted:
            raise WorkerError(reply.reason)
        return reply.parameter_server

    async def report(self) -> pb.HeartbeatReply:
        """Sends one heartbeat."""
        request = pb.HeartbeatRequest(
            worker=self._name,
            version=self._engine.version,
            figures=self._engine.health(),
            draining=self.draining,
        )
        return await self._fleet.Heartbeat(request, timeout=self._deadlines.rpc_s)

    async def heartbeat(self) -> None:
        """Reports until the run is over. A controller that forgot this worker gets it again."""
        missed = 0
        while True:
            self._beat.clear()
            try:
                reply = await self.report()
            except grpc.aio.AioRpcError as error:
                missed += 1
                log.warning("heartbeat failed (%d in a row): %s", missed, describe(error))
                if missed >= 2 * self._deadlines.heartbeats_lost:
                    # The controller is gone or being restarted: wait for one, or give up.
                    await self.register()
                    missed = 0
                    continue
            else:
                missed = 0
                if reply.stop:
                    return
                if not reply.known:
                    await self.register()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._beat.wait(), self._deadlines.heartbeat_s)

    def want(self, version: int) -> None:
        """A request needs at least this version, also if it is not yet time to reload."""
        if version > self._wanted:
            self._wanted = version
            self._newer.set()

    async def live(self) -> None:
        """Registers, then reports and follows the weights until the run is over.

        Raises:
          RlaxError: this worker can be of no use any more.
        """
        parameter_server = await self.register()
        log.info("worker %s serves on %s", self._name, self._address)
        client = ParameterServerClient(parameter_server, rpc_s=self._deadlines.rpc_s)
        tasks = {
            asyncio.ensure_future(self.heartbeat()),
            asyncio.ensure_future(self._watch(client)),
            asyncio.ensure_future(self._follow(client)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()

    async def _watch(self, client: ParameterServerClient) -> None:
        async for version in client.watch(after=self._engine.version):
            self._newest = version.version
            self._newer.set()

    def _due(self) -> bool:
        held = self._engine.version
        due = held < 0 or self._newest - held >= self._section.staleness.reload_every
        return self._newest > held and (due or self._wanted > held)

    async def _follow(self, client: ParameterServerClient) -> None:
        """Loads every ``reload_every``-th version, and what requests wait for."""
        while True:
            await self._newer.wait()
            self._newer.clear()
            if not self._due():
                continue
            first = self._engine.version < 0
            await self._load(client)
            log.info("serving version %d", self._engine.version)
            if first:
                self._beat.set()  # the controller waits for the first weights

    async def _load(self, client: ParameterServerClient) -> None:
        """Loads the newest version under a lease.

        Raises:
          WeightsError: it cannot be had or is damaged, also not at the last attempt. A worker that
            stayed would only keep its groups waiting for a version that never comes.
        """
        # The first time the engine may still be building and compiling its model.
        first = self._engine.version < 0
        key = "startup_s" if first else "weights_s"
        deadline_s: float = getattr(self._deadlines, key)
        for pause_s in (*_LOAD_PAUSES_S, None):
            try:
                async with client.acquire() as version:
                    await asyncio.wait_for(self._engine.load_weights(version), deadline_s)
                return
            except TimeoutError:
                what = "loading a weight version"
                raise DeadlineError(what, deadline_s, f"rlax.deadlines.{key}") from None
            except (WeightsError, DeadlineError) as error:
                if pause_s is None:
                    raise
                log.error("weights were not loaded, trying again in %g s: %s", pause_s, error)
                await asyncio.sleep(pause_s)

    async def leave(self) -> None:
        try:
            await self._fleet.Deregister(
                pb.DeregisterRequest(worker=self._name), timeout=self._deadlines.rpc_s
            )
        except grpc.aio.AioRpcError as error:
            log.info("the controller was already gone: %s", describe(error))
        await self._channel.close()


async def _serve(
    section: RlaxSection,
    engine: RolloutEngine,
    *,
    name: str,
    controller: str,
    config_hash: str,
    add_services: Callable[[grpc.aio.Server, RolloutEngine], None] | None,
) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    port = server.add_insecure_port(f"{section.network.host}:0")
    member = Member(
        name=name,
        address=f"{section.network.host}:{port}",
        controller=controller,
        engine=engine,
        section=section,
        config_hash=config_hash,
    )
    service = RolloutService(engine, section, on_wanted=member.want)
    rpc.add_RolloutServicer_to_server(service, server)
    if add_services is not None:
        add_services(server, engine)
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, terminated.set)
    await server.start()
    life = asyncio.ensure_future(member.live())
    told = asyncio.ensure_future(terminated.wait())
    await asyncio.wait({life, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not life.done():
        log.info("draining for at most %g s", section.deadlines.drain_s)
        member.draining = True
        # Once the controller has heard it, it sends nothing more: no group is turned away.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await member.report()
        service.draining = True
        # gRPC's grace lets running calls end and refuses new ones.
        await server.stop(section.deadlines.drain_s)
        life.cancel()
    (ended,) = await asyncio.gather(life, return_exceptions=True)
    await member.leave()
    await server.stop(0)
    if isinstance(ended, Exception):
        raise ended


def serve(
    config_path: str, overrides: Sequence[str], *, controller: str, name: str, with_parent: bool
) -> None:
    """Runs a worker until its run ends, it is told to leave, or it fails.

    Args:
      controller: host:port of the controller's Fleet service.
      name: unique among the run's live workers.
      with_parent: end when the process that started this one ends.

    Raises:
      RlaxError: configuration, start-up and engine failures.
    """
    if with_parent:
        end_with_parent()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    section, _ = load_section(config_path, overrides)
    context = BuildContext(
        run_dir=Path(), seed=section.seed, section=section, maxtext_argv=(config_path, *overrides)
    )
    engine: RolloutEngine = build_part(
        "rollout_engine", section.rollouts.engine, "rlax.rollouts.engine", context
    )
    try:
        asyncio.run(
            _serve(
                section,
                engine,
                name=name,
                controller=controller,
                config_hash=config_hash(config_path, overrides),
                add_services=getattr(engine, "add_services", None),
            )
        )
    except RlaxError:
        log.exception("worker %s failed", name)
        raise
    finally:
        if (close := getattr(engine, "close", None)) is not None:
            close()
