"""The contexts that free slots keep: which tokens' keys and values they hold. No JAX.

A slot keeps the tokens of its last sample until it is filled again. The next turn of the episode
then prefills only what follows them, which is known as prefix caching.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Match(NamedTuple):
    """A context that begins with ``count`` tokens whose keys and values are in ``slot``."""

    slot: int
    count: int


class Ended(NamedTuple):
    """A sample whose generated tokens are to be moved from the ring to the cache of its prompt.

    Attributes:
      prompt: tokens in the cache of its prompt.
      new: entries of the ring that belong to it.
      age: decode steps since it was put into its slot.
    """

    slot: int
    prompt: int
    new: int
    age: int


@dataclass(slots=True)
class _Running:
    tokens: np.ndarray  # prefilled
    since: int  # decode steps when it was put into its slot
    # Generated, as they were read last.
    new: np.ndarray = field(default_factory=functools.partial(np.zeros, 0, np.int32))


class _Kept(NamedTuple):
    tokens: np.ndarray
    prompt: bytes  # the tokens that were prefilled
    length: int  # number of these


class KeptContexts:
    """Keeps account of the slots' contexts, which are all of one version of the weights.

    Args:
      longest: places of a slot's cache of the prompt.
      ring: places of the ring of new tokens.
    """

    def __init__(self, longest: int, ring: int):
        self._longest, self._ring = longest, ring
        self._running: dict[int, _Running] = {}
        self._kept: dict[int, _Kept] = {}  # the oldest first
        self._by_prompt: dict[int, dict[bytes, list[int]]] = {}

    def forget(self) -> None:
        """Forgets all contexts, because the weights change."""
        self._running, self._kept, self._by_prompt = {}, {}, {}

    def inserted(self, slots: Collection[int], tokens: np.ndarray, steps: int) -> None:
        """Notes a prompt, with the tokens of a continued sample, that was put into slots.

        Args:
          steps: decode steps of the engine so far.
        """
        for slot in slots:
            self._drop(slot)
            self._running[slot] = _Running(tokens, steps)

    def read(self, slot: int, new: np.ndarray) -> None:
        """Notes the tokens [length] that a slot has generated since it was filled."""
        if slot in self._running:
            self._running[slot].new = new

    def released(self, slots: Collection[int], steps: int) -> list[Ended]:
        """Returns the samples whose entries of the ring are to be moved, and keeps their contexts.

        What was not read, may have been overwritten, or does not fit, is not kept.

        Args:
          slots: those of samples that have ended, or are not wanted any more.
          steps: decode steps of the engine so far.
        """
        found = []
        for slot in slots:
            if (one := self._running.pop(slot, None)) is None:
                continue
            prompt, new, age = len(one.tokens), len(one.new) - 1, steps - one.since
            if not 0 <= new <= age <= self._ring or prompt + new > self._longest:
                continue
            # Nothing has attended to the last token: its keys and values are not known.
            tokens = np.concatenate([one.tokens, one.new[:new]])
            kept = self._kept[slot] = _Kept(tokens, one.tokens.tobytes(), prompt)
            self._by_prompt.setdefault(prompt, {}).setdefault(kept.prompt, []).append(slot)
            if new:
                found.append(Ended(slot, prompt, new, age))
        return found

    def find(self, context: np.ndarray, taken: Collection[int] = ()) -> Match | None:
        """Returns the slot that keeps most of the tokens with which a context begins.

        One token at least is left to be prefilled, as the next one is sampled after it.

        Args:
          taken: slots that must not be returned.
        """
        best: Match | None = None
        for length, same in self._by_prompt.items():
            if length > len(context):
                continue
            for slot in same.get(context[:length].tobytes(), ()):
                if slot in taken:
                    continue
                count = min(_common(self._kept[slot].tokens, context), len(context) - 1)
                if count > (best.count if best else 0):
                    best = Match(slot, count)
        return best

    def goes_on(self, match: Match) -> bool:
        """True if a context goes on behind most of what the slot's sample has generated.

        Otherwise it has no more in common with it than the samples of a group have.
        """
        kept = self._kept[match.slot]
        generated = len(kept.tokens) - kept.length
        return 2 * (match.count - kept.length) >= generated

    def order(self, free: Sequence[int]) -> list[int]:
        """Returns free slots in the order to fill them: what keeps nothing, and then the oldest."""
        ages = {slot: age for age, slot in enumerate(self._kept, 1)}
        return sorted(free, key=lambda slot: ages.get(slot, 0))

    def _drop(self, slot: int) -> None:
        if (kept := self._kept.pop(slot, None)) is None:
            return
        same = self._by_prompt[kept.length]
        same[kept.prompt].remove(slot)
        if not same[kept.prompt]:
            del same[kept.prompt]
        if not same:
            del self._by_prompt[kept.length]


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Returns the number of tokens with which both begin."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
