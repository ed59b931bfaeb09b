"""The sampler ``shuffled``, and the epochs of it and of ``greso``.

In an epoch each prompt comes once, in a random order; each domain has epochs of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlax_plugin.api import Domains, NoOptions, PassRates, Prompt, PromptTable, Sampler

_BLOCK, _BLOCKS = 16, 4  # so many prompts are looked at, so often, until one is accepted


def domains_of(prompts: Sequence[Prompt]) -> Domains | None:
    """Returns the domains of the prompts, or None if they have none."""
    return prompts.domains if isinstance(prompts, PromptTable) else None


class Order:
    """Numbers from 0 to size - 1 in epochs, each in a random order.

    The saved state is the generator's state before an order was made and the count of used numbers,
    so a million prompts take no more space than ten.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None
        self._order = np.zeros(0, np.int64)
        self._left = 0  # the last is used first

    def peek(self, size: int, most: int, rng: np.random.Generator) -> np.ndarray:
        """Returns the next numbers of this epoch, at least one; a finished epoch starts another."""
        if not self._left:
            self._before = dict(copy.deepcopy(rng.bit_generator.state))
            self._order, self._left = rng.permutation(size), size
        return self._order[max(0, self._left - most) : self._left][::-1]

    def skip(self, count: int) -> None:
        """Marks ``count`` numbers that ``peek`` returned as used."""
        self._left -= count

    def state(self) -> dict[str, Any]:
        if self._before is None:
            return {}
        return {"rng": self._before, "size": len(self._order), "unused": self._left}

    def restore(self, state: dict[str, Any]) -> None:
        if not state:  # there was no order yet
            self.__init__()
            return
        before: dict[str, Any] = state["rng"]
        bits = getattr(np.random, before["bit_generator"])()
        bits.state = self._before = before
        self._order = np.random.Generator(bits).permutation(state["size"])
        self._left = state["unused"]


class Epochs:
    """Every prompt once per epoch, shuffled again for each epoch.

    With domains, each has epochs of its own, and the next prompt comes from the domain whose number
    of chosen prompts is the furthest below the number that its weight asks for, counted from the
    last change of weights.
    """

    def __init__(self) -> None:
        self._all = Order()
        self._of: dict[str, Order] = {}  # domain -> its order
        self._chosen: dict[str, int] = {}
        self._weights: list[float] | None = None  # with which they were chosen
        self._domains: Domains | None = None
        self._places: list[np.ndarray] = []  # of the prompts of each domain

    def next(
        self,
        prompts: Sequence[Prompt],
        rng: np.random.Generator,
        accepts: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> int:
        """Returns the index of the next prompt.

        Args:
          prompts: all prompts.
          rng: source of randomness.
          accepts: maps indices of prompts to a bool each; prompts before the first accepted one are
            left out of this epoch. If none of 64 is accepted, the last of them is taken.
        """
        order, places = self._next_order(prompts)
        size = len(prompts) if places is None else len(places)
        index = 0
        for _ in range(_BLOCKS):
            block = order.peek(size, _BLOCK if accepts else 1, rng)
            block = block if places is None else places[block]
            found = np.flatnonzero(accepts(block)) if accepts else np.zeros(1, np.int64)
            used = int(found[0]) + 1 if found.size else len(block)
            order.skip(used)
            index = int(block[used - 1])
            if found.size:
                break
        return index

    def _next_order(self, prompts: Sequence[Prompt]) -> tuple[Order, np.ndarray | None]:
        domains = domains_of(prompts)
        if domains is None:
            return self._all, None
        if domains is not self._domains:
            self._begin(domains)
        chosen = np.array([self._chosen[name] for name in domains.names])
        number = int(np.argmax(domains.lacking(chosen)))
        name = domains.names[number]
        self._chosen[name] += 1
        return self._of[name], self._places[number]

    def _begin(self, domains: Domains) -> None:
        self._domains, self._places = domains, domains.places()
        weights = domains.weights.tolist()
        if self._weights not in (None, weights):
            # Else a domain that had no weight would be alone until it has caught up.
            self._chosen = {}
        self._weights = weights
        for name in domains.names:
            self._of.setdefault(name, Order())
            self._chosen.setdefault(name, 0)

    def state(self) -> dict[str, Any]:
        if not self._chosen:
            return self._all.state()
        orders = {name: order.state() for name, order in self._of.items()}
        return {"domains": orders, "chosen": dict(self._chosen), "weights": self._weights}

    def restore(self, state: dict[str, Any]) -> None:
        self.__init__()
        if "domains" not in state:
            self._all.restore(state)
            return
        self._chosen, self._weights = dict(state["chosen"]), state.get("weights")
        for name, order in state["domains"].items():
            self._of[name] = Order()
            self._of[name].restore(order)


class ShuffledConfig(NoOptions):
    """Chooses every prompt once per epoch, in a new random order in each epoch.

    Where prompts have domains with weights, each domain has epochs of its own, and the next prompt
    comes from the domain whose number of chosen prompts is the furthest below the number that its
    weight asks for.
    """


class Shuffled(Sampler):
    """Chooses every prompt once per epoch, in a new random order; domains by their weights."""

    def __init__(self) -> None:
        self._epochs = Epochs()

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        return [self._epochs.next(prompts, rng) for _ in range(count)]

    def state(self) -> dict[str, Any]:
        return self._epochs.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._epochs.restore(state)
