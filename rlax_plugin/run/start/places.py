"""The options of ``rlax train`` on hosts, and the part of a trainer that they make of a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import HostPlace
from rlax_plugin.config.addresses import host_of, is_address, is_loopback


@dataclass(frozen=True, slots=True)
class Places:
    """The options of ``rlax train`` on hosts, as given.

    Attributes:
      hosts: number of hosts; None: hosts are not spoken of.
      host: number of this one; None: all are started here.
      coordinator: host:port of jax.distributed's coordinator.
      controller: host:port of host 0's controller, for other hosts.
      token_file: of the run, for other hosts.
    """

    hosts: int | None = None
    host: int | None = None
    coordinator: str = ""
    controller: str = ""
    token_file: str = ""

    @property
    def several(self) -> bool:
        """True if there are several hosts."""
        return self.hosts is not None and self.hosts > 1

    @property
    def count(self) -> int:
        """Number of hosts."""
        return self.hosts or 1

    def train(self, config: str, overrides: Sequence[str], wanted: str | None) -> int:
        """Trains as this process; returns the exit status.

        Args:
          wanted: see ``run.start.run.train``.

        Raises:
          ConfigError: an option is missing, or has no effect.
          RlaxError: training failed.
        """
        place = self.place()
        if place is not None and not place.leads:
            from rlax_plugin.run.start.follower import follow

            return follow(
                config,
                overrides,
                wanted,
                place,
                controller=self.controller,
                token_file=self.token_file,
            )
        if self.several and place is None:
            from rlax_plugin.run.start.hosts import train_on_hosts

            return train_on_hosts(config, overrides, wanted, self.count)
        from rlax_plugin.run.start.run import train

        return train(config, overrides, wanted, place)

    @staticmethod
    def end_with_parent() -> None:
        """Has this process stop when its parent ends."""
        from rlax_plugin.run.programs.serve import end_with_parent

        end_with_parent()

    def place(self) -> HostPlace | None:
        """The place of this process; None if there is none, or if it is to start all hosts.

        Raises:
          ConfigError: an option is missing, or has no effect.
        """
        given = {
            "--coordinator": self.coordinator,
            "--controller": self.controller,
            "--token-file": self.token_file,
        }
        if self.host is None:
            for option, value in given.items():
                if value:
                    raise ConfigError(option, value, "needs --host")
            return HostPlace() if self.hosts == 1 else None
        if self.hosts is None or self.hosts < 2:
            raise ConfigError("--host", self.host, "needs --hosts, a number of at least 2")
        if self.host >= self.hosts:
            reason = f"must be less than --hosts: hosts are numbered from 0 to {self.hosts - 1}"
            raise ConfigError("--host", self.host, reason)
        if not self.coordinator:
            reason = "must be given with --host: HOST:PORT, the same for all hosts"
            raise ConfigError("--coordinator", None, reason)
        name, colon, port = self.coordinator.rpartition(":")
        if not (colon and name and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError("--coordinator", self.coordinator, "must be HOST:PORT")
        if self.host == 0:
            for option in ("--controller", "--token-file"):
                if given[option]:
                    raise ConfigError(option, given[option], "is for the other hosts, not host 0")
        elif not self.controller and not is_loopback(host_of(self.coordinator)):
            reason = (
                "must be given, as host 0 is on another machine: the address that its rlax train "
                "prints (set rlax.network.host and port there)"
            )
            raise ConfigError("--controller", None, reason)
        if self.controller and not is_address(self.controller):
            raise ConfigError("--controller", self.controller, "must be HOST:PORT")
        return HostPlace(self.host, self.hosts, self.coordinator)
