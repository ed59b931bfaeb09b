"""Weights between an engine's ``load`` and ``use``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that an engine has read and does not use yet; the worker verifies them first.

    Attributes:
      version: the number of the version.
      arrays: name -> array where the engine will use it, or anything that has the array's shape
        and dtype.
      fingerprints: computes name -> uint32 of the arrays where the engine will use them, called
        on a thread of its own; None: the engine cannot, so that only the store's checksums and
        the canary vouch for them.
      discard: called if they will not be used after all: what waits for them goes on without.
    """

    version: int
    arrays: Mapping[str, Any]
    fingerprints: Callable[[], Mapping[str, Any]] | None
    discard: Callable[[], None] = lambda: None
