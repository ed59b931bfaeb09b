"""The worker of a run in a process of its trainer, from its start to the run's end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from rlax_plugin.base.concurrency.devices import CALL, Devices
from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.liveness.run_status import COLOCATED
from rlax_plugin.build import build_part
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.config.network import Place
from rlax_plugin.ports.protocols import BuildContext, RolloutEngine
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.worker.colocated import ColocatedLink, OwnProcess
from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rollout.worker.member import PROCESS, Member
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc.transport.own_address import own_address
from rlax_plugin.run.programs.engine import check_scores
from rlax_plugin.weights.memory_copies import THIS_PROCESS

log = logging.getLogger("rlax.worker")

_LOOK_S = 1.0  # between two looks at the engine's calls
_CLOSE_S = 15.0  # for the engine's thread to leave a call
_END_S = 1.0  # for the last status of each call to go out


async def colocated_worker(
    run: RunToJoin, config: ResolvedConfig, devices: Devices, fleet: Fleet
) -> None:
    """Generates in the controller's process until the run is over, in turns with training.

    Raises:
      RlaxError: the engine cannot be built, has failed or hangs, or its weights are wrong. The run
        must end, as it cannot have another one in this process.
    """
    named = _Named(COLOCATED, PROCESS, THIS_PROCESS)
    async with _engine(run, config, devices) as engine:
        place = OwnProcess(run.controller, run.secret.certificate)
        member, service = _joining(run, engine, devices, place, named)
        fleet.here[PROCESS] = lambda: ColocatedLink(service, engine, run.section, devices)
        try:
            await _live(member, service, devices, run.section.deadlines.group_s)
        finally:
            del fleet.here[PROCESS]


async def worker_of_host(
    run: RunToJoin, config: ResolvedConfig, devices: Devices, trainer: str, host: int
) -> None:
    """Generates in the process of another host than 0 until the run is over.

    The controller calls it as any worker; its weights are this host's arrays by reference.

    Args:
      trainer: identifies host 0's start, see ``Leader``.
      host: number of this one.

    Raises:
      RlaxError: see ``colocated_worker``.
    """
    named = _Named(f"{COLOCATED}-{host}", worker_process(trainer, host), trainer)
    place = Place(own_address(run.controller))
    async with _engine(run, config, devices) as engine:
        with Endpoint(place, engine, name=named.name) as endpoint:
            member, service = _joining(run, engine, devices, endpoint, named)
            await endpoint.start(service)
            try:
                await _live(member, service, devices, run.section.deadlines.group_s)
            finally:
                await endpoint.server.stop(_END_S)


def worker_process(trainer: str, host: int) -> str:
    """The id of the worker in the process of another host, by which the controller knows it.

    Args:
      trainer: identifies host 0's start, see ``Leader``.
    """
    return f"{trainer}h{host}"


class _Named(NamedTuple):
    """The name of a worker, the id of its process, and the memory that it reads; see ``Member``."""

    name: str
    process: str
    memory: str


def _joining(
    run: RunToJoin,
    engine: RolloutEngine,
    devices: Devices,
    endpoint: Endpoint | OwnProcess,
    named: _Named,
) -> tuple[Member, RolloutService]:
    """Returns a worker that has not joined yet, and its service."""
    member = Member(
        name=named.name,
        run=run,
        endpoint=endpoint,
        engine=engine,
        on_quarantine=lambda: service.stop_generating("this worker is quarantined"),
        progress=lambda health, loading: service.progress(health, loading),
        process=named.process,
        memory=named.memory,
        paused_s=lambda: devices.trained_s,
    )
    service = RolloutService(
        engine, run.section, on_wanted=member.want, has_weights=lambda: member.holds_weights
    )
    return member, service


@asynccontextmanager
async def _engine(
    run: RunToJoin, config: ResolvedConfig, devices: Devices
) -> AsyncIterator[RolloutEngine]:
    """Builds the engine, and closes it.

    It is built once the trainer has its model: two threads must not import MaxText at once.
    """
    await asyncio.wrap_future(devices.rested)
    section = run.section
    context = BuildContext.outside_run(section, config)
    context = dataclasses.replace(context, generating=devices.generating)
    choice, key = section.rollouts.engine, "rlax.rollouts.engine"
    build = partial(build_part, "rollout_engine", choice, key, context)
    building: Future[RolloutEngine] = on_daemon(build, "rlax-engine-build")
    try:
        engine = await asyncio.wrap_future(building)
    except asyncio.CancelledError:
        building.add_done_callback(_close_unused)
        raise
    devices.compiles = lambda: engine.version < 0
    try:
        check_scores(engine, choice.name)
        yield engine
    finally:
        closing = on_daemon(engine.close, "rlax-engine-close")
        devices.end()  # else the engine's thread might wait for its turn, or take the trainer's
        await asyncio.wait({asyncio.wrap_future(closing)}, timeout=_CLOSE_S)
        if not closing.done():
            log.error("the rollout engine does not close, and is abandoned after %g s", _CLOSE_S)
        elif (problem := closing.exception()) is not None:
            log.error("the rollout engine did not close: %s", problem)


async def _live(member: Member, service: RolloutService, devices: Devices, call_s: float) -> None:
    """Lives until the run is over, or until a call of the engine takes longer than ``call_s``.

    Then it leaves the run. Neither training nor any other sample goes on beside such a call.

    Raises:
      DeadlineError: a call did; those of an engine that compiles have ``startup_s``.
    """
    life = asyncio.ensure_future(member.live())
    try:
        while not (await asyncio.wait({life}, timeout=_LOOK_S))[0]:
            if devices.call_s > call_s and not devices.compiles():
                raise DeadlineError(CALL, call_s, "rlax.deadlines.group_s")
        life.result()
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await member.leave()
        service.stop_generating("the run is over")
        service.end_calls()


def _close_unused(building: Future[RolloutEngine]) -> None:
    """Closes an engine that was built after the run had ended."""
    if not building.cancelled() and building.exception() is None:
        building.result().close()
