"""The age limit of samples: the two integers that bound staleness (RLAX, 2512.06392).

A worker reloads once per ``reload_every`` = j versions. Step s makes weight version s; a sample
trains in it only if its oldest token was generated with version s - k or a newer one, where k is
``max_staleness``. With k = 1 this is version s - 1, from which the step starts (on-policy). At most
``(k - j + 1)`` steps' worth of groups are outstanding, so ordinarily no group becomes too stale.
"""

from __future__ import annotations

import dataclasses
import math

from rlax_plugin.base.types import NO_VERSION, Request
from rlax_plugin.config import RlaxSection


class Staleness:
    """The bounds of one run.

    Args:
      groups: groups per step, as the batch rule counts them.

    Attributes:
      capacity: groups that may be outstanding at once.
    """

    def __init__(self, section: RlaxSection, groups: int):
        self._max_staleness = section.staleness.max_staleness
        self._logged = section.trains_on_log
        self._groups, lead = groups, section.staleness.steps_ahead
        self._most_ahead = lead * groups - 1
        self.capacity = math.ceil(lead * groups * section.curation.oversample)

    def wanted_version(self, next_step: int, ahead: int) -> int:
        """Returns the oldest version for a group before which ``ahead`` groups train."""
        # Groups beyond those that can train in time are spares, as fresh as the last of them.
        trains_at = next_step + min(ahead, self._most_ahead) // self._groups
        return max(0, trains_at - self._max_staleness)

    def refreshed(self, request: Request, next_step: int) -> Request:
        """Returns a group's request with the oldest version that the next step accepts.

        Its tokens so far are kept if they are fresh enough.
        """
        wanted = max(request.min_version, self.wanted_version(next_step, 0))
        oldest = min((int(s.versions[0]) for s in request.resume if len(s.versions)), default=-1)
        resume = request.resume if oldest >= wanted else ()
        # What is kept may need newer weights to go on with (``Request.needs_version``). Whether it
        # is too old is decided by its oldest token, by workers too.
        return dataclasses.replace(request, min_version=wanted, resume=resume)

    def oldest(self, step: int) -> int:
        """Returns the oldest version whose tokens can train at ``step``."""
        return NO_VERSION if self._logged else step - self._max_staleness
