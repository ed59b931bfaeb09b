"""Orders, by which host 0 of a trainer tells its other hosts what to do next.

Every host runs the same computations in the same order, because each of them involves the devices
of all hosts. Host 0 decides what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import EMPTY

if TYPE_CHECKING:
    import numpy as np

END = "end"
"""Kind of the last order: host 0 gives no more of them."""


class Order(NamedTuple):
    """The next thing that a host has to do.

    Attributes:
      kind: a word on which the two halves of a trainer have agreed, or ``END``.
      settings: further words.
      arrays: name -> array, such as this host's rows of a batch.
    """

    kind: str
    settings: Mapping[str, str] = EMPTY
    arrays: Mapping[str, np.ndarray] = EMPTY


class Followers(Protocol):
    """The other hosts, as host 0 sees them."""

    def tell(self, host: int, order: Order) -> None:
        """Gives an order to a host; returns at once. Orders arrive once each, in their order.

        Args:
          host: from 1.
        """
        ...


class NoFollowers(Followers):
    """The other hosts of a trainer on one host: there are none."""

    def tell(self, host: int, order: Order) -> None:
        raise TrainingError(f"there is no host {host}")
