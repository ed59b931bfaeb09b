"""The parts of the newest version, and whether the next ones are written in full or as changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.types import DELTA, DeltaSize, VersionPart
from rlax_plugin.weights import deltas

Chain = tuple[VersionPart, ...]

# Larger changes are not worth it: a reader that has nothing needs them besides the whole weights.
_MOST_OF_WHOLE = 0.5


class NewestParts:
    """What a trainer process has published last, part by part. Used on the publisher's thread.

    Args:
      full_every: of so many versions one is written in full, and the others as changes if these are
        less than half as large; 1: every version is written in full.
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

    def to_write(self, whole: VersionPart, arrays: Arrays) -> tuple[Chain, VersionPart, Arrays]:
        """How new arrays of a part are written.

        Args:
          whole: the part, if it is written in full.

        Returns:
          The parts that remain, which are written already; the part to write after them, and its
          arrays.
        """
        before, name = self._chains.get(whole.name, ()), whole.name
        if not before or len(before) >= self._full_every or before[0].shapes != whole.shapes:
            return (), whole, arrays
        most = int(_MOST_OF_WHOLE * deltas.nbytes(whole))
        changes = deltas.encoded(self._arrays[name], arrays, most)
        if changes is None:
            return (), whole, arrays
        size = DeltaSize(**{kind: array.nbytes for kind, array in changes.items()})
        name = f"{name[:28]}_{len(before)}"  # names have a limit
        return before, dataclasses.replace(whole, name=name, format=DELTA, delta=size), changes

    def published(self, chains: Mapping[str, Chain], given: Mapping[str, Arrays | None]) -> None:
        """Takes note of a published version.

        Args:
          chains: part -> what it consists of now.
          given: part -> its new arrays; None: it has not changed.
        """
        self._chains = dict(chains)
        if self._full_every > 1:
            new = {name: arrays for name, arrays in given.items() if arrays is not None}
            # On the host: a second version on the devices may be too much.
            self._arrays |= {
                name: {n: np.asarray(array) for n, array in arrays.items()}
                for name, arrays in new.items()
            }
