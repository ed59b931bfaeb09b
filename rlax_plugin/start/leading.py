"""Host 0 of a trainer over several hosts: the check of its parts, and the end of its orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.hosts.leading import Leader
from rlax_plugin.ports.training import HostTrainer, Trainer
from rlax_plugin.rpc.operator_certificate import check_shown_by_clients
from rlax_plugin.types import HostPlace


def check_hosts(place: HostPlace | None, trainer: Trainer, section: RlaxSection) -> None:
    """Checks that the trainer can be spread over hosts, if it is to be.

    Raises:
      ConfigError: it cannot, or its certificate is not for hosts.
    """
    if place is not None and not isinstance(trainer, HostTrainer):
        name = section.trainer.name
        reason = f"trainer {name!r} cannot be spread over hosts: leave --hosts out"
        raise ConfigError("--hosts", place.count, reason)
    if place is not None and place.several and section.network.tls.given:
        check_shown_by_clients(section.network.tls)


@contextmanager
def led(
    leader: Leader | None,
    on_stop: Callable[[int, str], None],
    thread: LoopThread,
    within_s: float,
) -> Iterator[None]:
    """Passes on the other hosts' requests to stop, and tells them when no orders follow.

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
    try:
        yield
    except BaseException as error:
        leader.end(str(error) or type(error).__name__)
        thread.run_last(leader.heard_the_end(within_s), 2 * within_s)
        raise
    leader.end()
