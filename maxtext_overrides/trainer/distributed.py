"""Joins this process to the other hosts of a trainer: jax.distributed, and collectives on CPUs."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import signal
from collections.abc import Mapping

import jax

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, DeadlineError, TrainingError
from rlax_plugin.base.types import HostPlace
from rlax_plugin.config.addresses import host_of, is_loopback

log = logging.getLogger("rlax.hosts")

_LOOK_S = 0.2
_XLA_DEVICES = "xla_force_host_platform_device_count"


def cpu_devices_are_set() -> bool:
    """True if the environment sets the number of devices of the processor."""
    return _XLA_DEVICES in os.environ.get("XLA_FLAGS", "")


def is_local(coordinator: str) -> bool:
    """True if only processes of this machine reach an address, host:port."""
    return is_loopback(host_of(coordinator))


def use_cpu_devices(count: int) -> None:
    """Has this process count this many devices of its processor; before JAX looks for devices.

    Raises:
      ConfigError: ``XLA_FLAGS`` sets another number.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in flags.split():
        name, _, value = flag.lstrip("-").partition("=")
        if name == _XLA_DEVICES and value != str(count):
            reason = f"must not set {_XLA_DEVICES}: with --hosts each host takes {count} devices"
            raise ConfigError("XLA_FLAGS", flags, reason)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def join(place: HostPlace, *, startup_s: float, host_s: float, tls: Mapping[str, str]) -> None:
    """Connects to the other hosts; blocks until all have come. Once per process.

    JAX ends this process, without a Python exception, once another host is lost.

    Args:
      place: of this process, with several hosts.
      startup_s: time for all hosts to come.
      host_s: time without a heartbeat after which a host is lost.
      tls: certificate, key and ca of ``rlax.network.tls``, with which the hosts and the coordinator
        verify each other; empty: only on a loopback address.

    Raises:
      DeadlineError: not all hosts came in time.
      TrainingError: the coordinator cannot be reached, or its port is taken.
    """
    if jax.distributed.is_initialized():
        return
    secured = {f"mtls_{name}_file": path for name, path in _mtls(tls).items()}
    bind = {}
    if place.leads:
        bind["coordinator_bind_address"] = place.coordinator
    what = f"waiting for all {place.count} hosts at {place.coordinator}"
    handler = signal.getsignal(signal.SIGTERM)
    connect = functools.partial(
        jax.distributed.initialize,
        place.coordinator,
        place.count,
        place.index,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(startup_s),
        heartbeat_timeout_seconds=math.ceil(host_s),
        shutdown_timeout_seconds=math.ceil(host_s),
        **bind,
        **secured,
    )
    # On a thread of its own: this one can be interrupted by a signal, and JAX's call cannot.
    connecting = on_daemon(connect, "jax.distributed")
    try:
        while not connecting.done():
            with contextlib.suppress(TimeoutError):
                connecting.exception(_LOOK_S)
        connecting.result()
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            raise DeadlineError(what, startup_s, "rlax.deadlines.startup_s") from error
        raise TrainingError(f"{what}: {error}") from error
    # JAX's preemption service, which MaxText asks at each checkpoint, takes SIGTERM for itself; a
    # signal at one host must become a decision of host 0.
    signal.signal(signal.SIGTERM, handler)
    if jax.config.jax_platforms == "cpu":
        _collectives_at("127.0.0.1" if is_local(place.coordinator) else None)
    log.info("this is host %d of %d, with coordinator %s", place.index, place.count, bind or "-")


def _mtls(tls: Mapping[str, str]) -> dict[str, str]:
    """JAX's names for the files."""
    names = {"certificate": "cert", "key": "key", "ca": "ca"}
    return {names[name]: path for name, path in tls.items() if path}


def _collectives_at(host: str | None) -> None:
    """Has the CPU's collectives (Gloo) listen on one address of this machine.

    JAX has no setting for it, and takes the address that belongs to the machine's name. Delete this
    once there is one.

    Args:
      host: None: JAX's own choice.
    """
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    if host is None:
        return
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=host
    )
    make = functools.partial(xla_bridge.make_cpu_client, collectives)
    xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def leave() -> None:
    """Waits until all hosts have finished, and disconnects from them.

    Raises:
      TrainingError: another host has not finished within ``host_s``.
    """
    if not jax.distributed.is_initialized():
        return
    try:
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError as error:
        raise TrainingError(f"the other hosts have not finished training: {error}") from error
