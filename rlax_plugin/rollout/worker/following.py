"""Decides which weight version a worker loads, and at which time."""

from __future__ import annotations

import logging

from rlax_plugin.base.types import WeightVersion

log = logging.getLogger("rlax.worker")


class Following:
    """Decides if a worker must load weights, for one trainer process.

    Args:
      reload_every: the worker loads one of this many versions, unless a request needs another.

    Attributes:
      held: the verified version of this trainer process in use, reported to the controller. -1:
        none.
      pin: the version that the controller wants kept; None: none.
    """

    def __init__(self, reload_every: int):
        self._reload_every = reload_every
        self.forget()

    def forget(self) -> None:
        """Forgets all versions, because another trainer process has registered the worker."""
        self.held = -1
        self.pin: int | None = None
        self._newest = -1  # on the parameter server, perhaps of an earlier trainer process
        self._in_memory: WeightVersion | None = None
        self._wanted = -1  # by a request
        self.confirmed = False  # whether the controller has published any

    def confirm(self, version: int) -> bool:
        """Takes the version that the controller calls the newest; True if it is its first."""
        first = version >= 0 and not self.confirmed
        self.confirmed |= first
        return first

    def seen(self, version: WeightVersion) -> None:
        """Takes the newest version of the parameter server, or one that has a copy in memory."""
        if version.in_memory:
            self._in_memory = version
            return
        self._newest = version.version
        if self._in_memory is not None and self._in_memory.version < version.version:
            self._in_memory = None

    @property
    def offered(self) -> WeightVersion | None:
        """The version that should be loaded from memory; None: it must be another one."""
        found = self._in_memory
        if found is None or self.pin not in (None, found.version):
            return None
        return found

    def decline(self, version: WeightVersion) -> None:
        """Takes note that a copy in memory cannot be used: the version is seen once more."""
        if self._in_memory is version:  # else there is a newer one by now
            self._in_memory = None

    def want(self, version: int) -> bool:
        """Notes that a request needs at least this version; False if an earlier one needed it."""
        grows = version > self._wanted
        self._wanted = max(version, self._wanted)
        return grows

    def keep(self, version: int | None) -> bool:
        """Sets the version that the controller wants kept (None: none); False if unchanged."""
        if version == self.pin:
            return False
        what = "follow the newest version" if version is None else f"keep version {version}"
        log.info("the controller requests: %s", what)
        self.pin = version
        return True

    @property
    def due(self) -> bool:
        """True if a version must be loaded now."""
        if not self.confirmed:
            return False  # a parameter server may still hold versions of an earlier trainer process
        if self.pin is not None:
            return self.held != self.pin
        if self.held < 0:
            return True
        newest = self._newest if self._in_memory is None else self._in_memory.version
        behind = newest - self.held
        return behind > 0 and (behind >= self._reload_every or self._wanted > self.held)

    @property
    def can_go_on(self) -> bool:
        """True if there is work for it with the version that it holds.

        Otherwise a worker that waits for a version would only keep groups that need it from others.
        """
        return self.held >= 0 and self.pin is None and self._wanted <= self.held
