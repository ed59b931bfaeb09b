"""The table of existing versions, their readers and their ends. No I/O; the clock is given."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import NATIVE, WeightVersion

_LONGEST_ID = 64  # characters that are shown; those given here have 32


@dataclass(frozen=True, slots=True)
class Lease:
    """A reader's hold on a version.

    Attributes:
      id: unguessable, unique.
      holder: name of the reader, for messages.
      version: the leased version.
      read: the same in the format that its reader reads.
      expires_s: on the table's clock; renewing moves it.
      reader: leases with the same reader are counted together; empty: not counted.
    """

    id: str
    holder: str
    version: WeightVersion
    read: WeightVersion
    expires_s: float
    reader: str = ""


MOST_LEASES = 10_000
"""Maximum number of leases: readers hold one each, so a reader that asks for more is invalid."""
MOST_LEASES_OF_ONE = 100
"""Maximum number of leases of one reader, which has several only while one is being replaced."""


class TooManyLeasesError(WeightsError):
    """The maximum number of leases is reached."""


class VersionTable:
    """The newest ``keep`` versions, and older ones as long as a reader holds a lease on them.

    A trainer that restarts may publish a lower number than before: then that version and all
    above it are void. They cannot be acquired any more and stay only for existing leases.

    The readers of a former table's versions are unknown: after the first version that is published
    here, those versions stay for another ``lease_s``, as if each was leased once more.

    Methods that may end a version's life return the paths to delete, each exactly once: those of
    its parts that no other version of the table has.

    Args:
      keep: number of newest versions that stay without a lease.
      lease_s: duration of a lease unless it is renewed.
      versions: versions of a former table, oldest first.
      clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        keep: int,
        lease_s: float,
        versions: Iterable[WeightVersion] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        if keep < 1:
            raise ValueError(f"keep = {keep}: the newest version must stay")
        self._keep, self.lease_s, self._clock = keep, lease_s, clock
        self._versions = {v.version: v for v in sorted(versions, key=lambda v: v.version)}
        self._void: list[WeightVersion] = []
        self._leases: dict[str, Lease] = {}
        self._former = self.versions
        self._graces: list[str] = []  # leases of readers that may exist

    @property
    def versions(self) -> tuple[WeightVersion, ...]:
        """Every version that can be acquired, oldest first."""
        return tuple(self._versions.values())

    @property
    def void(self) -> tuple[WeightVersion, ...]:
        """Versions that cannot be acquired any more and stay only for their readers."""
        return tuple(self._void)

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all parts that must stay."""
        return frozenset(p for v in (*self._versions.values(), *self._void) for p in v.all_paths)

    @property
    def latest(self) -> WeightVersion | None:
        """The newest version; None before the first."""
        return next(reversed(self._versions.values()), None)

    def publish(self, version: WeightVersion, restart: bool = False) -> list[str]:
        """Adds the newest version; returns the paths to delete.

        Publishing the newest version again changes nothing: a publisher that lost the answer cannot
        know if its call arrived. Its paths distinguish it from a different version. It may come
        again with more converted parts.

        Args:
          restart: True for the first version of a trainer process; versions that are not older
            become void.
        Raises:
          WeightsError: the version is not newer than all others, and this is no restart.
        """
        latest, there = self.latest, self._versions.get(version.version)
        known = there is not None and there.paths == version.paths
        if restart and not known:
            void = [number for number in self._versions if number >= version.version]
            self._void += [self._versions.pop(number) for number in void]
        elif latest is not None and version.version <= latest.version:
            if not known or there is not latest:
                raise WeightsError(
                    f"version {version.version} cannot be published after version {latest.version}"
                )
            if not set(version.all_paths) > set(latest.all_paths):
                version = latest
        self._versions[version.version] = version
        former, self._former = self._former, ()
        self._graces += [self._lease(v, "a reader of an earlier process").id for v in former]
        return self.expire()

    def acquire(
        self, version: int | None, holder: str, reader: str = "", weights_format: str = NATIVE
    ) -> Lease:
        """A lease on one version, or on the newest for None.

        Args:
          reader: the reader whose leases are counted together, such as a connection.
          weights_format: of the parts that it reads.

        Raises:
          TooManyLeasesError: the maximum number is reached, for this reader or in total.
          WeightsError: no such version in this format (any more, or yet).
        """
        if len(self._leases) >= MOST_LEASES:
            raise TooManyLeasesError(f"{MOST_LEASES} leases are held, and no more are given")
        own = sum(lease.reader == reader for lease in self._leases.values()) if reader else 0
        if own >= MOST_LEASES_OF_ONE:
            raise TooManyLeasesError(f"{holder} holds {own} leases, and gets no more")
        every = {n: v.of_format(weights_format) for n, v in self._versions.items()}
        readable = {number: read for number, read in every.items() if read is not None}
        number = next(reversed(readable), None) if version is None else version
        if number is None or (read := readable.get(number)) is None:
            known = ", ".join(map(str, readable)) or "none"
            wanted = "a version" if version is None else f"version {version}"
            what = wanted if weights_format == NATIVE else f"{wanted} in format {weights_format}"
            raise WeightsError(f"{holder} requested {what}; available: {known}")
        return self._lease(self._versions[number], holder, reader, read)

    def _lease(
        self,
        version: WeightVersion,
        holder: str,
        reader: str = "",
        read: WeightVersion | None = None,
    ) -> Lease:
        expires_s = self._clock() + self.lease_s
        lease = Lease(uuid.uuid4().hex, holder, version, read or version, expires_s, reader)
        self._leases[lease.id] = lease
        return lease

    def renew(self, lease_id: str) -> Lease:
        """Restores a lease's full duration.

        Raises:
          WeightsError: the lease has expired or was released.
        """
        lease = self.lease(lease_id)
        renewed = dataclasses.replace(lease, expires_s=self._clock() + self.lease_s)
        self._leases[lease_id] = renewed
        return renewed

    def lease(self, lease_id: str) -> Lease:
        """A lease that is held.

        Raises:
          WeightsError: the lease has expired or was released.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.expires_s <= self._clock():
            shown = one_line(lease_id, _LONGEST_ID)
            raise WeightsError(
                f"lease {shown} was released or has expired, {self.lease_s:g} s after it was "
                "renewed (set rlax.deadlines.lease_s above the longest pause of a reader)"
            )
        return lease

    def release(self, lease_id: str) -> list[str]:
        """Ends a lease; does nothing if it has ended. Returns the paths to delete."""
        self._leases.pop(lease_id, None)
        return self.expire()

    def forget_former_readers(self) -> list[str]:
        """Ends the leases of a former table's possible readers; returns the paths to delete."""
        for lease_id in self._graces:
            self._leases.pop(lease_id, None)
        return self.expire()

    def expire(self) -> list[str]:
        """Ends overdue leases and forgets versions without readers; returns their paths."""
        now = self._clock()
        self._leases = {k: lease for k, lease in self._leases.items() if lease.expires_s > now}
        leased = {lease.version.paths for lease in self._leases.values()}
        void = [v for v in self._void if v.paths not in leased]
        old = [v for v in self.versions[: -self._keep] if v.paths not in leased]
        self._void = [v for v in self._void if v.paths in leased]
        for version in old:
            del self._versions[version.version]
        gone = dict.fromkeys(path for version in (*void, *old) for path in version.all_paths)
        needed = self.paths
        return [path for path in gone if path not in needed]

    @property
    def next_expiry_s(self) -> float | None:
        """Seconds until the first lease expires unless renewed; None without leases."""
        ends = [lease.expires_s for lease in self._leases.values()]
        return max(0.0, min(ends) - self._clock()) if ends else None
