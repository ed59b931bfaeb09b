"""Defines the number problems of each split as a pure function of its arguments."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Task = Literal["largest", "sum"]
SPLITS = ("train", "validation", "test")
_PARTS = 10  # of all problems: one is for tests, one for validation, the others for training


@dataclass(frozen=True, slots=True)
class Problem:
    """Some numbers and the right answer."""

    numbers: tuple[int, ...]
    answer: int


def problems(task: Task, split: str, count: int) -> list[Problem]:
    """Returns the first problems of a split, at most ``count``, in a fixed order.

    ``largest`` has four different numbers from 1 to 99, ``sum`` three digits from 0 to 9. The same
    numbers in another order are always in the same split, so that none is held out and trained on.
    """
    found: dict[tuple[int, ...], Problem] = {}
    for numbers in _ALL[task]():
        if len(found) == count:
            break
        if _split(task, numbers) == split:
            found.setdefault(numbers, Problem(numbers, _ANSWER[task](numbers)))
    return list(found.values())


def examples(task: Task, asked: Problem, count: int) -> list[Problem]:
    """Returns solved training problems to show before a question, the same ones each time.

    None of them has the numbers of the question.
    """
    found: list[Problem] = []
    known = {tuple(sorted(asked.numbers))}
    for number in itertools.count():
        if len(found) == count:
            break
        numbers = _numbers(task, f"{asked.numbers}/example/{number}")
        if tuple(sorted(numbers)) not in known and _split(task, numbers) == "train":
            known.add(tuple(sorted(numbers)))
            found.append(Problem(numbers, _ANSWER[task](numbers)))
    return found


def _hash(text: str) -> bytes:
    """Returns pseudo-random bytes that the text alone determines, with every library version."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _split(task: Task, numbers: Sequence[int]) -> str:
    part = _hash(f"{task}/split/{sorted(numbers)}")[0] % _PARTS
    return {0: "test", 1: "validation"}.get(part, "train")


def _numbers(task: Task, name: str) -> tuple[int, ...]:
    """Returns the numbers of one problem, determined by a name."""
    digest = _hash(f"{task}/{name}")
    if task == "sum":
        return tuple(byte % 10 for byte in digest[:3])
    chosen = list(dict.fromkeys(1 + byte % 99 for byte in digest if byte < 198))
    return tuple(chosen[:4]) if len(chosen) >= 4 else _numbers(task, f"{name}/again")


def _largest() -> Iterator[tuple[int, ...]]:
    return (_numbers("largest", f"problem/{number}") for number in itertools.count())


def _sum() -> Iterator[tuple[int, ...]]:
    """Yields all problems of ``sum``, in an order that a hash of each problem decides."""
    every = itertools.product(range(10), repeat=3)
    return iter(sorted(every, key=lambda numbers: _hash(f"sum/problem/{numbers}")))


_ALL = {"largest": _largest, "sum": _sum}
_ANSWER = {"largest": max, "sum": sum}
