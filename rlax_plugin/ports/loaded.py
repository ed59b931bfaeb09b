"""Weights between an engine's ``load`` and ``use``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rlax_plugin.base.types import VersionPart


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that an engine has read but does not use yet; the worker verifies them first.

    Attributes:
      version: the number of the version.
      arrays: name -> array on the engine's device, or anything that has the array's shape and
        dtype.
      fingerprints: computes name -> uint32 of the arrays on the engine's device, except those of
        ``held`` parts; called on a thread of its own. None: the engine cannot compute them, and the
        weights are verified by the store's checksums and the canary only.
      discard: called if the weights will not be used after all; samples that waited for them
        continue with the weights in use.
      parts: parts of the version, for the version that is loaded next.
      held: names of the parts that were not read, because the weights in use already have them.
    """

    version: int
    arrays: Mapping[str, Any]
    fingerprints: Callable[[], Mapping[str, Any]] | None
    discard: Callable[[], None] = lambda: None
    parts: tuple[VersionPart, ...] = ()
    held: Collection[str] = ()

    @property
    def read(self) -> dict[str, Any]:
        """The arrays that were read: all except those of ``held`` parts."""
        held = {name for part in self.parts if part.name in self.held for name in part.tensors}
        return {name: array for name, array in self.arrays.items() if name not in held}
