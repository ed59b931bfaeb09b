"""Samples random candidate prompts, of which a sampler picks one, or unmeasured prompts first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_curation.epochs import Order, domains_of
from rlax_plugin.api import Domains, PassRates, PositiveInt, Prompt, Section

_LOOKED_AT = 256  # prompts inspected to find one without a measured pass rate


class CandidatesConfig(Section):
    """Options of the samplers that pick one of several random prompts."""

    candidates: Annotated[PositiveInt, Field(le=256)] = Field(
        default=8, description="number of random prompts from which one is chosen"
    )
    unasked_first: bool = Field(
        default=False,
        description="true: every prompt without a measured pass rate is chosen once, in random "
        "order, before any prompt is chosen by its pass rate",
    )


class Candidates:
    """Chooses each prompt from candidates that are sampled uniformly.

    If prompts have domains, all candidates are of one domain, which is sampled by its weight.
    """

    def __init__(self, config: CandidatesConfig):
        self._config = config
        self._domains: Domains | None = None
        self._places: list[np.ndarray] = []  # of the prompts of each domain
        self._unasked: dict[str, Order] = {}  # domain -> its one epoch; "": there are no domains

    def choose(
        self,
        prompts: Sequence[Prompt],
        rates: PassRates,
        rng: np.random.Generator,
        count: int,
        pick: Callable[[np.ndarray], np.ndarray],
    ) -> list[int]:
        """Returns indices of ``count`` prompts.

        Args:
          prompts: all prompts.
          rates: their pass rates.
          rng: source of randomness.
          count: number of prompts to choose.
          pick: maps int64 [count, candidates], indices of prompts, to int64 [count], the column
            that is chosen in each row.
        """
        each = self._config.candidates
        numbers = self._domain_numbers(prompts, rng, count)
        if numbers is None:
            candidates = rng.integers(len(prompts), size=(count, each))
        else:
            found = [rng.choice(self._places[number], size=each) for number in numbers]
            candidates = np.array(found, np.int64).reshape(count, each)
        chosen = candidates[np.arange(count), pick(candidates)].tolist()
        if self._config.unasked_first:
            for i in range(count):
                new = self._new(prompts, rates, rng, None if numbers is None else numbers[i])
                chosen[i] = chosen[i] if new is None else new
        return chosen

    def _domain_numbers(
        self, prompts: Sequence[Prompt], rng: np.random.Generator, count: int
    ) -> list[int] | None:
        """Returns the domain of each choice; None if there are no domains."""
        if (domains := domains_of(prompts)) is None:
            return None
        if domains is not self._domains:
            self._domains, self._places = domains, domains.places()
        return rng.choice(len(domains.names), size=count, p=domains.weights).tolist()

    def _new(
        self,
        prompts: Sequence[Prompt],
        rates: PassRates,
        rng: np.random.Generator,
        number: int | None,
    ) -> int | None:
        """Returns the next unmeasured prompt of a domain; None if no inspected prompt qualifies."""
        places, name = None, ""
        if number is not None:
            assert self._domains is not None
            places, name = self._places[number], self._domains.names[number]
        order = self._unasked.setdefault(name, Order())
        if order.ended:
            return None
        block = order.peek(len(prompts) if places is None else len(places), _LOOKED_AT, rng)
        block = block if places is None else places[block]
        new = np.flatnonzero(~rates.measured(block))
        order.skip(int(new[0]) + 1 if new.size else len(block))
        return int(block[new[0]]) if new.size else None

    def state(self) -> dict[str, Any]:
        if not self._unasked:
            return {}
        return {"unasked": {name: order.state() for name, order in self._unasked.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that ``state`` returned; the rest is in the pass-rate table."""
        self._unasked = {}
        for name, order in state.get("unasked", {}).items():
            self._unasked[name] = Order()
            self._unasked[name].restore(order)
