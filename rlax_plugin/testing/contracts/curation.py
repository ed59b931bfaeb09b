"""Contracts of curation: samplers choose prompts, filters judge groups, selections samples."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from rlax_plugin.ports.curation import Filter, Sampler, Selection
from rlax_plugin.testing.builders import (
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_rates,
    make_sampled,
)
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.training.objective.batches import repeats_problem

_COUNTS = (3, 1, 0, 25, 2)  # more than there are prompts, too
_MOST_CHARACTERS = 60
_PROMPTS = tuple(make_prompt(str(number)) for number in range(10))
_RATES = make_rates(10, {2 * i: (i, 4 - i) for i in range(5)}, version=3)
_STATE = (
    "return from state() everything that it remembers, as plain JSON with text keys, and set all "
    "of it in restore()"
)


def _chosen(sampler: Sampler, rng: np.random.Generator) -> list[list[int]]:
    return [sampler.choose(_PROMPTS, _RATES, rng, count) for count in _COUNTS]


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


def check_sampler(trial: Trial, part: Inspection) -> None:
    """Checks that choices can be repeated after a restart."""
    trial.built(part)
    build: Callable[[], Sampler] = trial.build
    with part.rule(
        "choose returns as many ints as asked for, each an index into prompts",
        "return [int(i), ...]: numpy's integers cannot be recorded",
    ):
        for count, indices in zip(_COUNTS, _chosen(build(), np.random.default_rng(0)), strict=True):
            require(len(indices) == count, f"asked for {count} it chose {len(indices)}")
            for index in indices:
                require(type(index) is int, f"{index!r} is {type(index).__name__}")
                require(0 <= index < len(_PROMPTS), f"{index} of {len(_PROMPTS)} prompts")
    if not part.sound:
        return
    with part.rule(
        "all randomness comes from rng: the same generator gives the same choices",
        "sample from the rng that choose is given, never from random, numpy.random or a generator "
        "of its own: a resumed run makes every recorded choice once more",
    ):
        with _other_randomness(1):
            first = _chosen(build(), np.random.default_rng(0))
        with _other_randomness(2):
            second = _chosen(build(), np.random.default_rng(0))
        require(first == second, f"{first[0]} the first time, then {second[0]}")
    with part.rule("a new sampler that restores the state continues as the old one would", _STATE):
        sampler, rng = build(), np.random.default_rng(0)
        for done in range(3):
            state, bits = sampler.state(), rng.bit_generator.state
            text = json.dumps(state)
            expected = _chosen(sampler, rng)
            require(json.dumps(state) == text, "a state changes with the choices that follow")
            fresh, again = build(), np.random.default_rng(0)
            fresh.restore(json.loads(text))
            again.bit_generator.state = bits
            after = f"after {done * len(_COUNTS)} choices the next would be"
            restored = _chosen(fresh, again)
            require(restored == expected, f"{after} {expected[0]}, restored it is {restored[0]}")


def check_filter(trial: Trial, part: Inspection) -> None:
    """Checks that a filter gives reasons that can be counted."""
    filter: Filter = trial.built(part)
    mixed, prompt = make_group((1.0, 0.0, 0.5)), make_prompt("0", tokens=np.full(1000, 5, np.int32))
    cut = make_episode(
        make_sampled(300, finish="length", versions=np.repeat(np.array([0, 1], np.int32), 150)),
        text="",
    )
    groups = {
        "mixed rewards": mixed,
        "equal rewards": make_group((1.0, 1.0)),
        "rewards of 0": make_group((0.0, 0.0), pass_rate_before=0.0),
        "large rewards": make_group((-2.5, 300.0), pass_rate_before=1.0),
        "a reward that failed": make_group((1.0, None, 0.0), pass_rate_before=0.5),
        "only rewards that failed": make_group((None, None)),
        "one sample": make_group((1.0,)),
        "many samples": make_group([1.0, 0.0] * 16),
        "a long, truncated sample": replace(mixed, episodes=(cut, *mixed.episodes[1:])),
        "a group that was issued again": replace(mixed, attempt=2, prompt=prompt),
    }
    answers: dict[str, str | None] = {}
    with part.rule(
        "reject returns None or one short phrase, also where rewards are NaN",
        "return None to accept a group and a reason such as 'too easy' to reject it, never a bool; "
        "leave out NaN with rewards[~np.isnan(rewards)], which may leave none",
    ):
        for name, group in groups.items():
            reason = answers[name] = filter.reject(group)
            if reason is None:
                continue
            require(isinstance(reason, str), f"for {name} it returned {reason!r}")
            short = 0 < len(reason) <= _MOST_CHARACTERS and "\n" not in reason
            require(short, f"for {name}: {reason[:80]!r}, of {len(reason)} characters")
    with part.rule(
        "the same group gets the same answer",
        "judge by the group alone: a filter is called once per group, and in any order",
    ):
        for name, first in reversed(answers.items()):
            second = filter.reject(groups[name])
            require(first == second, f"{name}: {first!r}, then {second!r}")


def check_selection(trial: Trial, part: Inspection) -> None:
    """Checks that a selection fills the rows of a batch, and can be repeated after a restart."""
    trial.built(part)
    build: Callable[[], Selection] = trial.build
    mixed = [make_group((1.0, 0.0, 0.5, 0.0), id=number) for number in range(4)]
    failed = make_group((1.0, None, 0.0, None), id=4)
    batches = {
        "mixed rewards": (make_batch(groups=mixed), 16),
        "fewer rows than samples": (make_batch(groups=mixed), 8),
        "equal rewards": (make_batch(groups=[make_group((1.0,) * 4)] * 4), 8),
        "rewards that failed": (make_batch(groups=[failed, *mixed[:3]]), 16),
        "groups of two samples": (make_batch(groups=[make_group((1.0, 0.0))] * 4), 8),
    }
    with part.rule(
        "repeats returns an array of integers for each group, which sum to 1 up to count",
        "return np.zeros(len(group.episodes), int) for each of batch.groups, with the number of "
        "times that each episode trains; 0 where group.rewards is NaN",
    ):
        for name, (batch, count) in batches.items():
            found = build().repeats(batch, count, np.random.default_rng(0))
            problem = repeats_problem(batch.groups, found, count)
            require(not problem, f"for {name} it returned {problem}")
    if not part.sound:
        return
    with part.rule(
        "the same batch and generator give the same answer, and the batch stays as it is",
        "take all randomness from the rng that repeats is given, remember nothing from one batch "
        "to the next, and change no array of the batch",
    ):
        batch, count = batches["fewer rows than samples"]
        before = [own.copy() for own in batch.advantages]
        selection, found = build(), list[list[list[int]]]()
        for seed in (1, 2):
            with _other_randomness(seed):
                repeats = selection.repeats(batch, count, np.random.default_rng(0))
            found.append([own.tolist() for own in repeats])
        require(found[0] == found[1], f"{found[0]} the first time, then {found[1]}")
        require(np.array_equal(before, batch.advantages), "it changed the advantages")
