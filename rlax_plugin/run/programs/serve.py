"""``rlax serve``: a worker process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import grpc

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.liveness.marks import STATE_DIR, Announced, announced
from rlax_plugin.base.liveness.watchdog import STILL_S, Watchdog
from rlax_plugin.base.text.logs import log_to
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.config.addresses import is_loopback
from rlax_plugin.config.handing import for_worker
from rlax_plugin.config.identity import sample_hash
from rlax_plugin.config.loading import overridden
from rlax_plugin.config.network import Network, Place, check_page_is_local
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.worker.endpoint import Clients, Endpoint, Scrapes
from rlax_plugin.rollout.worker.joining import RunToJoin, fetch_config
from rlax_plugin.rollout.worker.member import Member
from rlax_plugin.rollout.worker.progress import EngineBeat
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc.security.operator_certificate import read_authority
from rlax_plugin.rpc.transport.own_address import own_address
from rlax_plugin.run.programs.engine import run
from rlax_plugin.weights.local_copies import local_copies

log = logging.getLogger("rlax.worker")

PARENT = "RLAX_PARENT_PID"
"""Environment variable with the launcher's process id, for ``--with-parent``."""

_ON_THE_WAY_S = 0.5  # for a call between the controller and this worker
_END_S = 1.0  # for the last status of each call to go out


def end_with_parent() -> None:
    """Asks Linux to end this process with its parent, even if the parent is killed by SIGKILL."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    # Not "is it 1": in a container the trainer may well be process 1.
    parent = os.getppid()
    if int(os.environ.get(PARENT, parent)) != parent:
        raise RlaxError("the process that started this worker has already ended")


async def work(
    run: RunToJoin,
    engine: RolloutEngine,
    *,
    name: str,
    terminated: asyncio.Event,
    scrapes: Scrapes = Scrapes(),  # noqa: B008  it is frozen
    place: Place = Place(),  # noqa: B008  it is frozen
    port: int = 0,
    incarnation: int = 0,
) -> None:
    """Runs a worker on the event loop until its run ends, it fails, or it has drained.

    Args:
      terminated: once set, the worker drains and leaves.
      place: the hosts to listen on and to be reached at by the controller.
      port: 0 takes any free one.
      incarnation: see ``Member``.

    Raises:
      RlaxError: the worker failed; wrong weights have been reported to the controller.
    """
    section = run.section
    clients: Clients = "token" if section.network.serve_clients else "none"
    with (
        local_copies(section) as copies,
        Endpoint(place, engine, name=name, port=port, scrapes=scrapes, clients=clients) as endpoint,
    ):
        if endpoint.clients_file is not None:
            log.info("clients of %s find its token in %s", endpoint.address, endpoint.clients_file)
        member = Member(
            name=name,
            run=run,
            endpoint=endpoint,
            engine=engine,
            on_quarantine=lambda: service.stop_generating("this worker is quarantined"),
            progress=lambda health, loading: service.progress(health, loading),
            copies=copies,
            incarnation=incarnation,
        )
        service = RolloutService(
            engine, section, on_wanted=member.want, has_weights=lambda: member.holds_weights
        )
        await endpoint.start(service)
        with _announced(name) as mark, Watchdog(mark) as watchdog:
            watchdog.watch_loop("the event loop", asyncio.get_running_loop())
            engine_s = max(STILL_S, section.deadlines.group_s / 2)  # it may have to compile
            beat = EngineBeat(engine, lambda: service.generating and not member.loading)
            watchdog.watch("the engine", beat.still_s, engine_s)
            await _live(member, service, endpoint.server, section, terminated)


def _announced(name: str) -> AbstractContextManager[Announced | None]:
    """Leaves this worker's mark where its launcher says, if it is on the trainer's machine."""
    state_dir = os.environ.get(STATE_DIR, "")
    if not state_dir or not os.path.isdir(state_dir):
        return contextlib.nullcontext()
    return announced(Path(state_dir), "worker", name)


async def _live(
    member: Member,
    service: RolloutService,
    server: grpc.aio.Server,
    section: RlaxSection,
    terminated: asyncio.Event,
) -> None:
    async def drain_when_told() -> None:
        await terminated.wait()
        await _drain(member, service, server, section)

    life = asyncio.ensure_future(member.live())
    drain = asyncio.ensure_future(drain_when_told())
    await asyncio.wait({life, drain}, return_when=asyncio.FIRST_COMPLETED)
    life.cancel()
    drain.cancel()
    endings = await asyncio.gather(life, drain, return_exceptions=True)
    # In this order: the controller believes nothing more of a worker that says it is quarantined,
    # so it must hear that before its calls end.
    service.stop_generating("this worker is leaving")
    failure = next((one for one in endings if isinstance(one, Exception)), None)
    await member.leave(failure)
    service.end_calls()
    await server.stop(_END_S)
    if failure is not None:
        raise failure


async def _drain(
    member: Member, service: RolloutService, server: grpc.aio.Server, section: RlaxSection
) -> None:
    """Ends open groups: finishes them or, if others can resume them, hands them over."""
    drain_s = section.deadlines.drain_s
    log.info("draining for at most %g s", drain_s)
    member.draining = True
    # Once the controller has heard it, it sends nothing more: no group is turned away.
    with contextlib.suppress(grpc.aio.AioRpcError):
        await member.report()
    if member.holds_weights:  # then what it sent before may still be on its way
        await asyncio.sleep(min(_ON_THE_WAY_S, drain_s))
    service.draining = True
    if section.rollouts.on_new_weights == "continue":
        await service.hand_over(min(drain_s, 2 * section.rollouts.progress_s))
    # gRPC's grace lets running calls end and rejects new ones.
    await server.stop(drain_s)


def serve(
    overrides: Sequence[str],
    *,
    controller: str,
    token_file: str | None,
    name: str,
    with_parent: bool,
    host: str = "",
    advertised_host: str = "",
    port: int = 0,
    ca: str = "",
    incarnation: int = 0,
    prometheus_port: int | None = None,
    prometheus_token: str = "",
) -> None:
    """Runs a worker until its run ends, it gets a signal to leave, or it fails.

    Args:
      overrides: see ``config/handing.py``.
      controller: host:port of the controller's Fleet service.
      token_file: the run's token file for workers; None: the file of a trainer of this user on
        this machine.
      name: unique among the run's live workers.
      with_parent: end when the process that started this one ends.
      host: address of this machine to listen on; "": a loopback address if the controller is on
        this machine, otherwise the address from which this machine reaches the controller.
      ca: file with the authority's certificate, which verifies the controller and the parameter
        server; "": as the token file says.
      advertised_host: host by which the controller reaches this worker; "": ``host``.
      port: to listen on, and to be reached at; 0 takes any free one.
      incarnation: see ``Member``.
      prometheus_port: 0 takes any free one; None: no page.
      prometheus_token: token that a scrape must have; "" if none is required.

    Raises:
      RlaxError: configuration, start-up and engine failures.
    """
    if with_parent:
        end_with_parent()
    log_to(sys.stderr)
    startup_s = _startup_s(overrides)
    authority = read_authority("--ca", ca) if ca else ""
    handed, secret = asyncio.run(
        fetch_config(controller, token_file, startup_s, name, authority=authority)
    )
    config = for_worker(handed, overrides)
    place = _place(host, advertised_host, overrides, controller)
    if prometheus_port is not None and not prometheus_token:
        check_page_is_local(place.host, "--prometheus-token-file")

    async def life(section: RlaxSection, engine: RolloutEngine, terminated: asyncio.Event) -> None:
        try:
            await work(
                RunToJoin(controller, section, sample_hash(config.content), secret),
                engine,
                name=name,
                terminated=terminated,
                scrapes=Scrapes(prometheus_port, prometheus_token),
                place=place,
                port=port,
                incarnation=incarnation,
            )
        except RlaxError:
            log.exception("worker %s failed", name)
            raise

    run(config, name, life)


def _startup_s(overrides: Sequence[str]) -> float:
    """Seconds to wait for a controller whose config has not been read yet."""
    said = overridden({}, overrides).get("rlax")
    deadlines = said.get("deadlines") if isinstance(said, Mapping) else None
    return validate(Deadlines, deadlines or {}, "rlax.deadlines").startup_s


def _place(host: str, advertised: str, overrides: Sequence[str], controller: str) -> Place:
    """Returns the hosts of this worker's port.

    Raises:
      ConfigError: one of them is no host, or the controller's host is not known.
    """
    said = overridden({}, overrides).get("rlax")
    network = said.get("network") if isinstance(said, Mapping) else None
    given = validate(Network, network or {}, "rlax.network")
    set_host = given.host if "host" in given.model_fields_set else ""
    place = Place(host or set_host, advertised or given.advertised_host)
    if not place.host:
        place = Place(own_address(controller), place.advertised)
    place.check("--host", "--advertised-host")
    if is_loopback(place.reached_at) and not place.advertised:
        needed = own_address(controller)
        if not is_loopback(needed):
            reason = (
                f"cannot be reached by the controller at {controller}, which is on another "
                f"machine: give {needed}, or leave it out"
            )
            raise ConfigError("--host", place.host, reason)
    return place
