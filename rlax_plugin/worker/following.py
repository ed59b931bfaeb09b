"""The weight versions that a worker knows of: the one it holds, and whether it is to load one."""

from __future__ import annotations

import logging

log = logging.getLogger("rlax.worker")


class Following:
    """Decides when a worker loads weights, of one trainer process.

    Args:
      reload_every: versions of which it loads one, if no request needs another.

    Attributes:
      held: loaded and proved, of this trainer process; what the controller is told. -1: none.
      pin: the version that the controller wants kept; None: none.
    """

    def __init__(self, reload_every: int):
        self._reload_every = reload_every
        self.forget()

    def forget(self) -> None:
        """Another trainer process has registered it: no version that it knows of counts."""
        self.held = -1
        self.pin: int | None = None
        self._newest = -1  # on the parameter server, perhaps of an earlier trainer process
        self._wanted = -1  # by a request
        self.confirmed = False  # whether the controller has published any

    def confirm(self, version: int) -> bool:
        """Hears of the version that the controller calls the newest; True if it is its first."""
        first = version >= 0 and not self.confirmed
        self.confirmed |= first
        return first

    def seen(self, version: int) -> None:
        """The parameter server has a version as its newest."""
        self._newest = version

    def want(self, version: int) -> bool:
        """A request needs at least this version; False if one has needed it before."""
        grows = version > self._wanted
        self._wanted = max(version, self._wanted)
        return grows

    def keep(self, version: int | None) -> bool:
        """The controller wants a version kept, or (None) none any more; False if it is no news."""
        if version == self.pin:
            return False
        what = "follow the newest version" if version is None else f"keep version {version}"
        log.info("the controller requests: %s", what)
        self.pin = version
        return True

    @property
    def due(self) -> bool:
        """True if a version is to be loaded now."""
        if not self.confirmed:
            return False  # a parameter server may still hold versions of an earlier trainer process
        if self.pin is not None:
            return self.held != self.pin
        if self.held < 0:
            return True
        behind = self._newest - self.held
        return behind > 0 and (behind >= self._reload_every or self._wanted > self.held)

    @property
    def can_go_on(self) -> bool:
        """True if there is work for it with the version that it holds.

        A worker that waits for a version in vain only keeps groups that need it from others.
        """
        return self.held >= 0 and self.pin is None and self._wanted <= self.held
