"""The processes that a run has had as workers, and the trust in each.

A process is remembered after it has gone: samples that it generated may still be scored, and a
quarantined process must not come back. Processes choose their own names, so only a limited number
is remembered; the oldest registrations are forgotten first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rlax_plugin.base.text.harmless import hidden_character, is_one_line, one_line
from rlax_plugin.config.addresses import host_of, is_address, is_wildcard
from rlax_plugin.rpc import rlax_pb2 as pb

if TYPE_CHECKING:
    from rlax_plugin.rollout.fleet.worker import Worker

Identity = tuple[str, str]
"""Name and process; they identify a process even among those of the same name."""

LONGEST_NAME = 128  # characters of a name, and of what tells its process from others
_LONGEST_ADDRESS = 300  # characters; a DNS name has 253 at most
_MOST_IDENTITIES = 10_000  # processes that are remembered
_MOST_REGISTRATIONS = 100  # of one process: requests of earlier ones have ended
_MOST_FIGURES, _LONGEST_FIGURE = 200, 64  # of a worker; characters of a figure's name


def malformed(request: pb.RegisterRequest) -> str | None:
    """Returns the reason a registration cannot be a worker's; None if it can."""
    if not request.worker or not is_one_line(request.worker, LONGEST_NAME):
        return f"its name must be one line of 1 to {LONGEST_NAME} printable characters"
    if hidden := hidden_character(request.worker):
        return f"its name has {hidden}, which cannot be seen: start it with another --name"
    process = request.process
    if not (process.isascii() and process.isalnum() and len(process) <= LONGEST_NAME):
        return f"its process must be 1 to {LONGEST_NAME} letters and digits"
    if len(request.address) > _LONGEST_ADDRESS or not is_address(request.address):
        return f"its address must be host:port, not {one_line(request.address, LONGEST_NAME)}"
    if is_wildcard(host_of(request.address)):
        shown = one_line(request.address, LONGEST_NAME)
        return f"its address must be one to connect to, not {shown}: give --advertised-host"
    return None


def figures(told: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of a worker that metrics can show: finite ones with short names."""
    named = (
        (name, value)
        for name, value in told.items()
        if 0 < len(name) <= _LONGEST_FIGURE and not hidden_character(name) and math.isfinite(value)
    )
    return dict(itertools.islice(named, _MOST_FIGURES))


class Identities:
    """The registrations of processes, and the quarantined ones among them.

    Attributes:
      names: of processes that have registered.
      quarantined: name -> reason a process of that name was quarantined.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.quarantined: dict[str, str] = {}
        self._registered: dict[Identity, list[Worker]] = {}
        self._rejected: dict[Identity, str] = {}  # why
        self._nonsense: dict[Identity, int] = {}  # how often it answered any

    def __len__(self) -> int:
        return len(self._registered)

    def __contains__(self, identity: Identity) -> bool:
        """True if that process has registered."""
        return identity in self._registered

    def registrations(self, identity: Identity) -> Sequence[Worker]:
        """The registrations of a process, oldest first."""
        return self._registered.get(identity, ())

    def add(self, registration: Worker, members: Collection[Identity]) -> None:
        """Notes a registration.

        Args:
          members: processes that must not be forgotten.
        """
        identity = registration.identity
        before = self._registered.pop(identity, [])
        self._registered[identity] = [*before[1 - _MOST_REGISTRATIONS :], registration]
        self.names.add(identity[0])
        surplus = len(self._registered) - _MOST_IDENTITIES
        if surplus > 0:
            gone = (one for one in self._registered if one not in members)
            for one in list(itertools.islice(gone, surplus)):
                self._forget(one)

    def _forget(self, identity: Identity) -> None:
        for noted in (self._registered, self._rejected, self._nonsense):
            noted.pop(identity, None)
        name, _ = identity
        if not any(name == other for other, _ in self._registered):
            self.names.discard(name)
            self.quarantined.pop(name, None)

    def rejection(self, identity: Identity) -> str | None:
        """Returns the reason a process must not register again; None if it may."""
        return self._rejected.get(identity)

    def quarantine(self, identity: Identity, reason: str) -> str:
        """Rejects further registrations of a process; returns the reason that they are given."""
        self.quarantined[identity[0]] = reason
        why = self._rejected[identity] = f"quarantined: {reason}"
        return why

    def answered_nonsense(self, identity: Identity) -> int:
        """Counts an invalid reply of a process; returns how many there were."""
        times = self._nonsense[identity] = self._nonsense.get(identity, 0) + 1
        return times
