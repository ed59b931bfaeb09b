"""Built-in samplers: which prompts are chosen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    Domains,
    NoOptions,
    PassRates,
    PositiveInt,
    Prompt,
    PromptTable,
    Sampler,
    Section,
)

Rate = Annotated[float, Field(ge=0, le=1)]


class ShuffledConfig(NoOptions):
    """Chooses every prompt once per epoch, in a new random order in each epoch.

    Where prompts have domains with weights, each domain has epochs of its own, and the next prompt
    is of the domain that is furthest behind its weight.
    """


def domains_of(prompts: Sequence[Prompt]) -> Domains | None:
    """The domains of prompts that have several."""
    return prompts.domains if isinstance(prompts, PromptTable) else None


class _Order:
    """Numbers from 0 to size - 1 in epochs, each in a random order.

    What is saved is the generator's state before an order was made and how many of it are used, so
    that a million prompts take no more than ten.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None
        self._order = np.zeros(0, np.int64)
        self._left = 0  # the last is used first

    def next(self, size: int, rng: np.random.Generator) -> int:
        if not self._left:
            self._before = copy.deepcopy(rng.bit_generator.state)
            self._order, self._left = rng.permutation(size), size
        self._left -= 1
        return int(self._order[self._left])

    def state(self) -> dict[str, Any]:
        if self._before is None:
            return {"left": self._order[: self._left].tolist()}
        return {"rng": self._before, "size": len(self._order), "unused": self._left}

    def restore(self, state: dict[str, Any]) -> None:
        self._before = state.get("rng")
        if self._before is None:  # of an earlier version, or there was no order yet
            self._order = np.array(state["left"], np.int64)
            self._left = len(self._order)
            return
        bits = getattr(np.random, self._before["bit_generator"])()
        bits.state = self._before
        self._order = np.random.Generator(bits).permutation(state["size"])
        self._left = state["unused"]


class Shuffled(Sampler):
    """Every prompt once per epoch, shuffled again for each epoch; domains by their weights."""

    def __init__(self) -> None:
        self._all = _Order()
        self._of: dict[str, _Order] = {}  # domain -> its order
        self._chosen: dict[str, int] = {}
        self._domains: Domains | None = None
        self._places: list[np.ndarray] = []  # of the prompts of each domain

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        domains = domains_of(prompts)
        if domains is None:
            return [self._all.next(len(prompts), rng) for _ in range(count)]
        if domains is not self._domains:
            self._domains = domains
            self._places = domains.places()
            for name in domains.names:
                self._of.setdefault(name, _Order())
                self._chosen.setdefault(name, 0)
        return [self._next(domains, rng) for _ in range(count)]

    def _next(self, domains: Domains, rng: np.random.Generator) -> int:
        chosen = np.array([self._chosen[name] for name in domains.names])
        number = int(np.argmax(domains.lacking(chosen)))
        name, places = domains.names[number], self._places[number]
        self._chosen[name] += 1
        return int(places[self._of[name].next(len(places), rng)])

    def state(self) -> dict[str, Any]:
        if not self._chosen:
            return self._all.state()
        orders = {name: order.state() for name, order in self._of.items()}
        return {"domains": orders, "chosen": dict(self._chosen)}

    def restore(self, state: dict[str, Any]) -> None:
        self.__init__()
        if "domains" not in state:
            self._all.restore(state)
            return
        self._chosen = dict(state["chosen"])
        for name, order in state["domains"].items():
            self._of[name] = _Order()
            self._of[name].restore(order)


class LearnabilityConfig(Section):
    """Chooses prompts with an intermediate pass rate p more often.

    A prompt is chosen from random candidates, with a probability proportional to p (1 - p) (LILO,
    https://arxiv.org/abs/2502.12272). p is sampled from the posterior of the pass
    rate (Thompson sampling), so that prompts of which little is known are tried, too.
    """

    candidates: PositiveInt = Field(
        default=8, description="number of random prompts from which one is chosen"
    )
    floor: Rate = Field(
        default=0.02,
        description="smallest value that is used for p (1 - p), so that every prompt can still be "
        "chosen",
    )


class Learnability(Sampler):
    """Prompts with weight p(1-p), the chance-of-a-gradient rule of LILO (arXiv 2502.12272).

    For each prompt chosen, ``candidates`` are sampled uniformly and one of them is picked with
    probability proportional to ``max(floor, q (1 - q))``, q being a draw from the posterior of its
    pass rate (Thompson sampling). Easy and hopeless prompts become rare; they are chosen again when
    the policy has moved so far that they may have changed. Where prompts have domains, all
    candidates are of one, which is chosen by its weight.
    """

    def __init__(self, config: LearnabilityConfig) -> None:
        self._config = config
        self._domains: Domains | None = None
        self._places: list[np.ndarray] = []  # of the prompts of each domain

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        candidates = self._candidates(prompts, rng, count)
        drawn = rng.beta(*rates.posterior(candidates))
        weights = np.maximum(self._config.floor, drawn * (1 - drawn))
        # Where all weights are 0, which takes a floor of 0 and rates of 0 or 1, any will do.
        ends = np.cumsum(weights + np.finfo(float).tiny, axis=1)
        picked = np.sum(rng.random((count, 1)) * ends[:, -1:] >= ends, axis=1)
        return candidates[np.arange(count), np.minimum(picked, ends.shape[1] - 1)].tolist()

    def _candidates(
        self, prompts: Sequence[Prompt], rng: np.random.Generator, count: int
    ) -> np.ndarray:
        """int64 [count, candidates]."""
        each = self._config.candidates
        if (domains := domains_of(prompts)) is None:
            return rng.integers(len(prompts), size=(count, each))
        if domains is not self._domains:
            self._domains = domains
            self._places = domains.places()
        numbers = rng.choice(len(domains.names), size=count, p=domains.weights)
        found = [rng.choice(self._places[number], size=each) for number in numbers.tolist()]
        return np.array(found, np.int64).reshape(count, each)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to restore: what it knows is the pass-rate table."""
