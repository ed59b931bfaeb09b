"""Optional abilities of a weight store, recognised by their members."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rlax_plugin.ports.protocols import Arrays


@runtime_checkable
class SharedWriter(Protocol):
    """A weight store into which several hosts write one version together.

    A trainer that consists of several processes ("hosts") needs it. Each host passes the same
    arrays: names, shapes and global shardings are equal, and each host holds some of the shards.
    Host 0 calls ``begin`` and sends the directory to the other hosts; all hosts call ``write`` and
    tell host 0 the number of chunks; then host 0 calls ``commit``, or ``abandon`` if a host failed.
    The store itself never waits for another host. Each method has the deadline of ``save`` and
    raises its errors.
    """

    def begin(self, path: str, arrays: Arrays) -> str:
        """Host 0: makes the directory into which every host writes, with the arrays' metadata.

        Returns:
          The location of the directory.

        Raises:
          WeightsError: ``path`` exists, or the arrays cannot be stored.
        """
        ...

    def write(self, directory: str, arrays: Arrays) -> int:
        """Every host: writes the chunks of its own shards; returns once they are there.

        Never makes the directory.

        Returns:
          The number of chunks written.

        Raises:
          WeightsUnwritableError: the directory does not exist, or was removed meanwhile.
        """
        ...

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        """Host 0: makes the version visible, after all hosts have written.

        Args:
          chunks: sum of the numbers that the hosts' ``write`` returned.

        Raises:
          WeightsError: the version has another number of chunks; nothing becomes visible.
        """
        ...

    def abandon(self, path: str) -> None:
        """Host 0: removes the remains of a failed attempt; silent if there are none.

        Raises:
          WeightsError: they cannot be removed now; ``delete`` removes them too.
        """
        ...


STORE_ABILITIES = (SharedWriter,)
