"""The parts of the newest version; decides if the next ones are written in full or as changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.types import DELTA, LONGEST_NAME, MOST_PARTS, DeltaSize, VersionPart
from rlax_plugin.weights import deltas

Chain = tuple[VersionPart, ...]

# Of the bytes of the complete part, what all changes after it may take: a reader that has no
# weights yet reads both.
_MOST_CHANGES = 0.5


class NewestParts:
    """The parts that a trainer process has published last. Used on the publisher's thread.

    Args:
      full_every: number of versions in a row of which the first is written in full, and the others
        as changes, unless the changes become too large; 1: every version is written in full.
    """

    def __init__(self, full_every: int):
        self._full_every = full_every
        self._chains: dict[str, Chain] = {}
        self._arrays: dict[str, dict[str, np.ndarray]] = {}  # on the host

    def __contains__(self, name: str) -> bool:
        return name in self._chains

    def chain(self, name: str) -> Chain:
        """A part and the changes after it, see ``WeightVersion.chains``."""
        return self._chains[name]

    def nbytes(self, names: Iterable[str], new: Mapping[str, VersionPart]) -> int:
        """Returns the most bytes that a reader without weights reads of a version.

        Args:
          names: of its parts.
          new: name -> complete part, of those that have changed.
        """
        parts = [*new.values()]
        for name in names:
            before = self._chains.get(name, ())
            parts += before[1:] if name in new else before
        return sum(part.nbytes for part in parts)

    def to_write(self, whole: VersionPart, arrays: Arrays) -> tuple[Chain, VersionPart, Arrays]:
        """Decides whether new arrays of a part are written in full or as changes.

        Args:
          whole: the part, if it is written in full.

        Returns:
          The parts that remain, which are written already; the part to write after them, and its
          arrays.
        """
        before = self._chains.get(whole.name, ())
        in_full = (), whole, arrays
        if not 0 < len(before) < self._full_every or before[0].shapes != whole.shapes:
            return in_full
        name = f"{whole.name}_{len(before)}"
        others = [part.name for chain in self._chains.values() for part in chain]
        most_others = MOST_PARTS - len(self._chains)  # each may get a part more
        if name in others or len(name) > LONGEST_NAME or len(others) > most_others:
            return in_full
        most = int(_MOST_CHANGES * whole.nbytes) - sum(part.nbytes for part in before[1:])
        changes = deltas.encoded(self._arrays[whole.name], arrays, most)
        if changes is None:
            return in_full
        size = DeltaSize(**{kind: array.nbytes for kind, array in changes.items()})
        part = dataclasses.replace(whole, name=name, format=DELTA, delta=size)
        first, *steps = before  # whose fingerprints are of no use any more
        before = first, *(dataclasses.replace(step, tensors={}) for step in steps)
        return before, part, deltas.stored(changes)

    def published(self, chains: Mapping[str, Chain], given: Mapping[str, Arrays | None]) -> None:
        """Takes note of a published version.

        Args:
          chains: part -> what it consists of now.
          given: part -> its new arrays; None: it has not changed.
        """
        self._chains = dict(chains)
        if self._full_every > 1:
            self._arrays |= {
                name: {n: _on_host(array) for n, array in arrays.items()}
                for name, arrays in given.items()
                if arrays is not None
            }


def _on_host(array: Any) -> np.ndarray:
    """A copy of an array of the host, or of a device, whose memory may not hold two versions."""
    return np.array(array) if isinstance(array, np.ndarray) else np.asarray(array)
