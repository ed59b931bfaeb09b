"""What a trainer and a weight store need to be spread over several hosts."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rlax_plugin.ports.orders import Order
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.ports.training import Decision, Publication


class FollowerPort(Publication, Protocol):
    """Host 0, as a trainer on another host sees it; called on the trainer's thread.

    ``publish`` takes the same parts as on host 0, after the same steps. This host then writes its
    own chunks of them, beside the trainer.
    """

    def next_order(self) -> Order:
        """Blocks until host 0 has given the next order.

        Raises:
          TrainingError: host 0 cannot be reached any more.
        """
        ...

    def decide(self, step: int) -> Decision:
        """Host 0's decision at the end of ``step``; blocks until it has decided.

        Raises:
          TrainingError: host 0 cannot be reached any more.
        """
        ...


@runtime_checkable
class SharedWriter(Protocol):
    """A weight store into which several hosts write one version together.

    A shape, dtype and sharding are the same on all hosts; each holds some of the shards.
    """

    def begin(self, path: str, arrays: Arrays) -> str:
        """Host 0 makes the directory into which every host writes, with all metadata.

        Returns:
          Its location.

        Raises:
          WeightsUnwritableError, WeightsError: as ``WeightStore.save``.
        """
        ...

    def write(self, directory: str, arrays: Arrays) -> int:
        """Every host writes the chunks of its own shards; returns once they are there.

        Returns:
          Number of chunks that were written.

        Raises:
          WeightsUnwritableError: also if the directory does not exist.
        """
        ...

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        """Host 0 makes the version visible, after all hosts have written.

        Args:
          chunks: sum of what ``write`` returned on all hosts.

        Raises:
          WeightsError: this is not the number of chunks of the version.
        """
        ...

    def abandon(self, path: str) -> None:
        """Host 0 removes what a failed attempt has left; silent if there is nothing."""
        ...
