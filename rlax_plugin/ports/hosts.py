"""Host 0, as a trainer on another host sees it."""

from __future__ import annotations

from typing import Protocol

from rlax_plugin.ports.orders import Order
from rlax_plugin.ports.training import Decision, Publication


class FollowerPort(Publication, Protocol):
    """Host 0, as a trainer on another host sees it; called on the trainer's thread.

    ``publish`` takes the same parts as on host 0, after the same steps. This host then writes its
    own chunks of them, beside the trainer.
    """

    def next_order(self) -> Order:
        """Blocks until host 0 has given the next order.

        Raises:
          TrainingError: host 0 cannot be reached any more, or has ended training.
        """
        ...

    def decide(self, step: int) -> Decision:
        """Host 0's decision at the end of ``step``; blocks until it has decided.

        Raises:
          TrainingError: host 0 cannot be reached any more.
        """
        ...
