"""Weights between an engine's ``load`` and ``use``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rlax_plugin.types import VersionPart


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that an engine has read and does not use yet; the worker verifies them first.

    Attributes:
      version: the number of the version.
      arrays: name -> array where the engine will use it, or anything that has the array's shape
        and dtype.
      fingerprints: computes name -> uint32 of the arrays where the engine will use them, but for
        those of parts that are ``held``; called on a thread of its own. None: the engine cannot,
        so that only the store's checksums and the canary vouch for them.
      discard: called if they will not be used after all: what waits for them goes on without.
      parts: of the version, for the version that is loaded next.
      held: names of the parts that were not read, because the weights in use have them.
    """

    version: int
    arrays: Mapping[str, Any]
    fingerprints: Callable[[], Mapping[str, Any]] | None
    discard: Callable[[], None] = lambda: None
    parts: tuple[VersionPart, ...] = ()
    held: Collection[str] = ()

    @property
    def read(self) -> dict[str, Any]:
        """Those of the arrays that were read: all but those of ``held`` parts."""
        held = {name for part in self.parts if part.name in self.held for name in part.tensors}
        return {name: array for name, array in self.arrays.items() if name not in held}
