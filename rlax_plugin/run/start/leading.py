"""Host 0 of a trainer over several hosts: the check of its parts, and the end of its orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlax_plugin.base.concurrency.loop_thread import LoopThread, result_within
from rlax_plugin.base.errors import ConfigError, DeadlineError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Descent, HostPlace
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.training import Trainer
from rlax_plugin.rpc.security.operator_certificate import check_shown_by_clients
from rlax_plugin.run.hosts.leading import Leader
from rlax_plugin.run.start import descent

_RECORD = "hosts.json"


def check_hosts(place: HostPlace | None, trainer: Trainer, section: RlaxSection) -> None:
    """Checks that the trainer can be spread over hosts, if it is to be.

    Raises:
      ConfigError: it cannot, or its certificate is not for hosts.
    """
    if place is not None and not trainer.spans_hosts:
        name = section.trainer.name
        reason = f"trainer {name!r} cannot be spread over hosts: leave --hosts out"
        raise ConfigError("--hosts", place.count, reason)
    if place is not None and place.several and section.network.tls.given:
        check_shown_by_clients(section.network.tls)


def record_start(files: RunFiles, leader: Leader) -> None:
    """Writes into the run's directory which start of host 0 this is."""
    files.put_json(_RECORD, {"start": leader.start, "hosts": leader.place.count})


def check_shared(files: RunFiles, start: str, origin: Descent | None) -> None:
    """Checks that another host sees the run's directory, into which all hosts write.

    Args:
      start: of host 0, see ``Leader``.
      origin: of the first weights, as the other host has decided.

    Raises:
      ConfigError: it sees another directory of that name, or would start from other weights.
    """
    record = files.get_json(_RECORD) or {}
    if record.get("start") != start:
        reason = (
            f"must be a directory that all hosts see: {files.location(_RECORD)}, as this host sees "
            "it, was not written by host 0"
        )
        raise ConfigError("base_output_directory", files.url, reason)
    if (known := descent.recorded(files)) != origin:
        theirs = known or "weights of its own"
        reason = f"must be the same on all hosts: host 0 starts from {theirs}"
        raise ConfigError(descent.OPTION, None if origin is None else str(origin), reason)


def wait_for_hosts(leader: Leader, thread: LoopThread, startup_s: float) -> None:
    """Waits for all other hosts to join.

    JAX would wait for them as well, but could only abort this process if one did not come.

    Args:
      thread: of the leader.
      startup_s: ``rlax.deadlines.startup_s``.

    Raises:
      DeadlineError: some did not come; names them.
    """

    def late(given_s: float) -> DeadlineError:
        missing = " and ".join(f"host {host}" for host in leader.missing)
        what = f"waiting for {missing} of {leader.place.count} to join"
        return DeadlineError(what, given_s, "rlax.deadlines.startup_s")

    result_within(leader.all_joined(), thread.loop, startup_s, late)


@contextmanager
def led(
    leader: Leader | None,
    trainer: Trainer,
    on_stop: Callable[[int, str], None],
    thread: LoopThread,
    within_s: float,
) -> Iterator[None]:
    """Passes on the other hosts' requests to stop, and tells them when no orders follow.

    Hosts that generate do until then. Then all hosts part.

    Args:
      leader: None: there are no other hosts.
      on_stop: see ``Leader``.
      thread: of the leader.
      within_s: time for the others to hear of the end.
    """
    if leader is None:
        yield
        return
    leader.on_stop = on_stop
    for told in leader.early:
        thread.loop.call_soon_threadsafe(on_stop, *told)
    try:
        yield
    except BaseException as error:
        leader.end(str(error) or type(error).__name__)
        thread.run_last(leader.heard_the_end(within_s), 2 * within_s)
        raise
    leader.end()
    trainer.leave()
