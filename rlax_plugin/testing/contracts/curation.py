"""Contracts of curation: samplers choose prompts, filters judge groups."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.ports.curation import Filter, Sampler
from rlax_plugin.testing.builders import make_episode, make_group, make_prompt, make_rates
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.types import Prompt, Sampled, ScoredGroup

_COUNTS = (3, 1, 0, 25, 2)  # more than there are prompts, too
_MOST_CHARACTERS = 60
_RANDOM_GROUPS = 200
_MANY = 1_000_000
_LOOKS = 1000  # at prompts and pass rates, for each prompt that is chosen
_MOST_STATE = 1_000_000
PROMPTS = tuple(make_prompt(str(number)) for number in range(10))


RATES = make_rates(10, {2 * i: (i, 4 - i) for i in range(5)}, version=3)


def _chosen(sampler: Sampler, rng: np.random.Generator) -> list[list[int]]:
    return [sampler.choose(PROMPTS, RATES, rng, count) for count in _COUNTS]


@contextmanager
def _other_randomness(seed: int) -> Iterator[None]:
    """Changes the state of global random generators, which a sampler must not use."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


class _TooMuch(Exception):
    """A sampler looked at more prompts than a step of a large dataset has time for."""


class _Counted:
    """Counts the prompts that a sampler looks at, and stops one that looks at all of them."""

    def __init__(self) -> None:
        self.most: int | None = None
        self.seen = 0

    def add(self, rows: int) -> None:
        self.seen += rows
        if self.most is not None and self.seen > self.most:
            raise _TooMuch(f"it looked at more than {self.most:,} prompts or pass rates")


class _ManyPrompts(Sequence[Prompt]):
    """As many prompts as a large dataset has; each is made when it is read."""

    def __init__(self, count: int, counted: _Counted):
        self._count, self._counted = count, counted

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        self._counted.add(1)
        return replace(PROMPTS[0], id=f"{index:016x}")


class _ManyRates(PassRateTable):
    """Pass rates of ``_ManyPrompts``."""

    def __init__(self, size: int, counted: _Counted):
        super().__init__(size, 32.0)
        self._counted = counted
        self.begin_with(np.full(size, 1.0), np.full(size, 3.0))

    def counts(self, indices: Any = None) -> tuple[np.ndarray, np.ndarray]:
        self._counted.add(len(self) if indices is None else np.size(indices))
        return super().counts(indices)

    def measured(self, indices: Any = None) -> np.ndarray:
        self._counted.add(len(self) if indices is None else np.size(indices))
        return super().measured(indices)

    def streaks(self, indices: Any = None) -> np.ndarray:
        self._counted.add(len(self) if indices is None else np.size(indices))
        return super().streaks(indices)


def _check_costs(build: Callable[[], Sampler], part: Inspection) -> None:
    """Measures the cost of a step with a million prompts by the prompts read, not by a clock."""
    counted = _Counted()
    prompts, rates = _ManyPrompts(_MANY, counted), _ManyRates(_MANY, counted)
    sampler, rng = build(), np.random.default_rng(0)
    with part.rule(
        f"of {_MANY:,} prompts a step looks at few",
        "look at random candidates, or go through an order that is made once: choose runs on the "
        "event loop, where everything else waits for it",
    ):
        counted.most = 4 * _MANY  # the first time it may look around
        sampler.choose(prompts, rates, rng, 64)
        for _ in range(3):
            counted.seen, counted.most = 0, 64 * _LOOKS
            sampler.choose(prompts, rates, rng, 64)
    with part.rule(
        f"with {_MANY:,} prompts state() is at most {_MOST_STATE:,} characters of JSON",
        "save what a choice needs to be made again, such as the generator's state before an order "
        "was made and how far it was used; the pass rates are saved by the run",
    ):
        size = len(json.dumps(sampler.state()))
        require(size <= _MOST_STATE, f"it is {size:,} characters")


def check_sampler(trial: Trial, part: Inspection) -> None:
    """Checks that choices can be repeated after a restart."""
    trial.built(part)
    build: Callable[[], Sampler] = trial.build
    with part.rule(
        "choose returns as many ints as asked for, each an index into prompts",
        "return [int(i), ...]: numpy's integers cannot be recorded",
    ):
        chosen = _chosen(build(), np.random.default_rng(0))
        for count, indices in zip(_COUNTS, chosen, strict=True):
            require(isinstance(indices, list), f"it returned {indices!r}")
            require(len(indices) == count, f"asked for {count} it chose {len(indices)}")
            for index in indices:
                require(type(index) is int, f"{index!r} is {type(index).__name__}")
                require(0 <= index < len(PROMPTS), f"{index} of {len(PROMPTS)} prompts")
    if not part.sound:
        return
    with part.rule(
        "all randomness comes from rng: the same generator gives the same choices",
        "sample from the rng that choose is given, never from random, numpy.random or a generator "
        "of its own: a resumed run makes every recorded choice once more",
    ):
        with _other_randomness(1):
            one = _chosen(build(), np.random.default_rng(0))
        with _other_randomness(2):
            other = _chosen(build(), np.random.default_rng(0))
        require(one == other, f"{one[0]} the first time, then {other[0]}")
    state = (
        "return from state() everything that it remembers, as plain JSON with text keys, and set "
        "all of it in restore()"
    )
    _check_costs(build, part)
    with part.rule("state() is JSON, and a copy", state):
        sampler, rng = build(), np.random.default_rng(0)
        _chosen(sampler, rng)
        found = sampler.state()
        require(isinstance(found, dict), f"it is {type(found).__name__}, not a dict")
        text = json.dumps(found)
        sampler.choose(PROMPTS, RATES, rng, 3)
        require(json.dumps(found) == text, "it changes with the choices that follow")
    with part.rule("a new sampler that restores the state continues as the old one would", state):
        sampler, rng = build(), np.random.default_rng(0)
        for done in range(3):
            text, bits = json.dumps(sampler.state()), rng.bit_generator.state
            expected = _chosen(sampler, rng)
            fresh, again = build(), np.random.default_rng(0)
            fresh.restore(json.loads(text))
            again.bit_generator.state = bits
            found = _chosen(fresh, again)
            after = f"after {done * len(_COUNTS)} choices the next would be"
            require(found == expected, f"{after} {expected[0]}, restored it is {found[0]}")


def _changed(group: ScoredGroup, **changes: Any) -> ScoredGroup:
    """The group with changed fields in its samples."""
    return _with_samples(group, [replace(s, **changes) for s in group.sampled])


def _with_samples(group: ScoredGroup, samples: Sequence[Sampled]) -> ScoredGroup:
    """The group with other samples, one for each of its episodes."""
    episodes = (
        make_episode(sampled, index=e.index, prompt=group.prompt, text=e.text)
        for e, sampled in zip(group.episodes, samples, strict=True)
    )
    return replace(group, episodes=tuple(episodes))


def _random_group(rng: np.random.Generator) -> ScoredGroup:
    """A group of random size, length and difficulty; some of many have features to filter by."""
    samples = int(rng.choice([1, 2, 4, 8, 16, 32]))
    if rng.random() < 0.5:
        rewards = (rng.random(samples) < rng.random()).astype(float)
    else:
        rewards = rng.normal(rng.normal(), 1, samples) * 10 ** rng.uniform(-2, 3)
    failed = rng.random(samples) < rng.choice([0, 0.2])
    known = (None, 0.0, float(rng.random()), 1.0)[rng.integers(4)]
    group = make_group(
        [None if bad else float(reward) for bad, reward in zip(failed, rewards, strict=True)],
        lengths=np.ceil(10 ** rng.uniform(0, 3, samples)).astype(int).tolist(),
        version=int(rng.integers(100)),
        id=int(rng.integers(1000)),
        attempt=int(rng.integers(1, 4)),
        pass_rate_before=known,
    )
    ends = rng.choice(["stop", "length"], samples).tolist()
    return _with_samples(
        group, [replace(s, finish=end) for s, end in zip(group.sampled, ends, strict=True)]
    )


def _told(group: ScoredGroup) -> str:
    longest = max(episode.tokens for episode in group.episodes)
    return (
        f"a group of {len(group.episodes)} samples of at most {longest} tokens, rewards "
        f"{group.rewards[:4].tolist()}, pass rate {group.pass_rate_before}"
    )


def check_filter(trial: Trial, part: Inspection) -> None:
    """Checks that a filter gives reasons that can be counted."""
    filter: Filter = trial.built(part)
    mixed = make_group((1.0, 0.0, 0.5))
    longer = make_group((1.0, 0.0), lengths=(3, 3))
    groups = {
        "mixed rewards": mixed,
        "equal rewards": make_group((1.0, 1.0)),
        "rewards of 0": make_group((0.0, 0.0)),
        "negative rewards": make_group((-2.5, 3.0)),
        "a reward that failed": make_group((1.0, None, 0.0)),
        "only rewards that failed": make_group((None, None)),
        "one sample": make_group((1.0,)),
        "a known pass rate": make_group((1.0, 0.0), pass_rate_before=0.75),
        "a prompt that never passed": make_group((1.0, 0.0), pass_rate_before=0.0),
        "a prompt that always passed": make_group((1.0, 0.0), pass_rate_before=1.0),
        "a truncated sample": _changed(mixed, finish="length"),
        "samples of several versions": _changed(longer, versions=np.array([0, 1, 1], np.int32)),
        "a group that was issued again": replace(mixed, attempt=2),
        "an empty text": replace(
            mixed, episodes=tuple(replace(e, text="") for e in mixed.episodes)
        ),
        "a long prompt": replace(mixed, prompt=make_prompt("0", tokens=np.full(1000, 5, np.int32))),
    }
    named, rng = list(groups), np.random.default_rng(0)
    groups |= {_told(group): group for group in (_random_group(rng) for _ in range(_RANDOM_GROUPS))}
    answers: dict[str, str | None] = {}
    with part.rule(
        "reject returns None or one short phrase, also where rewards are NaN",
        "return None to accept a group and a reason such as 'too easy' to reject it, never a bool; "
        "leave out NaN with rewards[~np.isnan(rewards)], which may leave none",
    ):
        for what, group in groups.items():
            reason = answers[what] = filter.reject(group)
            if reason is None:
                continue
            require(isinstance(reason, str), f"for {what} it returned {reason!r}")
            short = 0 < len(reason) <= _MOST_CHARACTERS and "\n" not in reason
            require(short, f"for {what}: {reason[:80]!r}, of {len(reason)} characters")
    with part.rule(
        "the same group gets the same answer",
        "judge by the group alone: a filter is called once per group, and in any order",
    ):
        # Backwards, those with short names first: they are what is told.
        for what in sorted(reversed(answers), key=lambda what: what not in named):
            one, two = answers[what], filter.reject(groups[what])
            require(one == two, f"{what}: {one!r}, then {two!r}")
