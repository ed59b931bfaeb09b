"""A process's place in a trainer that is spread over several hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostPlace:
    """One process of a trainer, and the number of all its processes.

    Host 0 leads: it has the controller, the run directory and the metrics. The others follow.

    Attributes:
      index: 0 to ``count`` - 1.
      count: number of hosts.
      coordinator: host:port at which the hosts find each other; host 0 listens there. "": there is
        only one host.
    """

    index: int = 0
    count: int = 1
    coordinator: str = ""

    @property
    def leads(self) -> bool:
        """True for host 0."""
        return self.index == 0

    @property
    def several(self) -> bool:
        """True if there are other hosts."""
        return self.count > 1
