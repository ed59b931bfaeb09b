"""Built-in samplers (which prompts are chosen) and filters (which groups are used)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Domains,
    Extension,
    Filter,
    NoOptions,
    PassRates,
    PositiveInt,
    Prompt,
    PromptTable,
    Sampler,
    ScoredGroup,
    Section,
    hookimpl,
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
    https://arxiv.org/abs/2502.12272). For p a value is drawn that is as probable as the measured
    samples make it, so that prompts of which little is known are tried, too.
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


class MixedOutcomeConfig(NoOptions):
    """Accepts a group only if its rewards differ.

    This is the dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476). With advantages that
    compare the rewards of a group, a group with equal rewards has no gradient.
    """


class MixedOutcome(Filter):
    """Accepts a group only if its rewards differ: DAPO's dynamic sampling (arXiv 2503.14476).

    Without a difference every advantage is 0, and the group has no gradient.
    """

    def reject(self, group: ScoredGroup) -> str | None:
        rewards = group.rewards[~np.isnan(group.rewards)]
        if rewards.size and rewards.min() < rewards.max():
            return None
        return "all rewards equal"


class BandConfig(Section):
    """Accepts a group if its share of passing samples lies between two bounds.

    A sample passes if its reward is at least rlax.curation.pass_threshold
    (https://arxiv.org/abs/2504.03380).
    """

    low: Rate = Field(
        default=0.2, description="smallest share of passing samples in an accepted group"
    )
    high: Rate = Field(
        default=0.8, description="largest share of passing samples in an accepted group"
    )

    @model_validator(mode="after")
    def _ordered(self) -> BandConfig:
        if self.low > self.high:
            raise ConfigError("low", self.low, f"must not exceed high = {self.high}")
        return self


class DifficultyBand(Filter):
    """Accepts groups whose share of passing samples lies in a band (arXiv 2504.03380)."""

    def __init__(self, config: BandConfig, pass_threshold: float) -> None:
        self._config, self._threshold = config, pass_threshold

    def reject(self, group: ScoredGroup) -> str | None:
        rewards = group.rewards[~np.isnan(group.rewards)]
        rate = float(np.mean(rewards >= self._threshold)) if rewards.size else 0.0
        if rate < self._config.low:
            return "too hard"
        return "too easy" if rate > self._config.high else None


@hookimpl
def rlax_register_sampler() -> dict[str, Extension]:
    def build_learnability(config: LearnabilityConfig, context: BuildContext) -> Learnability:
        return Learnability(config)

    return {
        "shuffled": Extension(ShuffledConfig, lambda config, context: Shuffled()),
        "learnability": Extension(LearnabilityConfig, build_learnability),
    }


@hookimpl
def rlax_register_filter() -> dict[str, Extension]:
    def build_band(config: BandConfig, context: BuildContext) -> DifficultyBand:
        return DifficultyBand(config, context.section.curation.pass_threshold)

    return {
        "mixed_outcome": Extension(MixedOutcomeConfig, lambda config, context: MixedOutcome()),
        "difficulty_band": Extension(BandConfig, build_band),
    }
