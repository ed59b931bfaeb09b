"""Interfaces of curation: what chooses prompts, by which pass rates, and what judges groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlax_plugin.types import Prompt, ScoredGroup

if TYPE_CHECKING:
    import numpy as np


class PassRates(Protocol):
    """Read-only view of the pass-rate table: by index into ``prompts``, in whole arrays.

    Ask for the prompts that you consider, not for all of a million: ``indices`` may be any integers
    in an array or a list, and each answer has their shape. None stands for all prompts.

    Attributes:
      version: the newest policy version of which a sample was observed. Samples count the less the
        older they are than this (``rlax.curation.pass_rate_half_life``).
      outcomes: how many groups of the run were scored, in this order: of which all samples passed,
        of which none did, and all others. What has changed since the last call says what is new.
    """

    @property
    def version(self) -> int: ...

    @property
    def outcomes(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def counts(
        self, indices: np.ndarray | Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(passed, failed) samples, decayed; float64, 0 where a prompt was never measured."""
        ...

    def posterior(
        self, indices: np.ndarray | Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(alpha, beta) of the Beta posterior of the pass rate; float64, never 0.

        A sampler that takes a draw ``rng.beta(alpha, beta)`` for the rate tries what it does not
        know as often as that deserves (Thompson sampling).
        """
        ...

    def measured(self, indices: np.ndarray | Sequence[int] | None = None) -> np.ndarray:
        """Of which prompts something is known, from this run or from a prior; bool."""
        ...

    def streaks(self, indices: np.ndarray | Sequence[int] | None = None) -> np.ndarray:
        """Groups in a row, up to the last, of which all samples passed, or minus those of which
        none did; int32, 0 after a mixed group."""
        ...


class Sampler(Protocol):
    """Chooses which prompts are asked next (curation.sample)."""

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        """Indices into ``prompts``, ``count`` of them; all randomness comes from ``rng``.

        A data set gives an ``rlax_plugin.api.PromptTable``: ``id_at(index)`` is cheaper there than
        the whole prompt, and its ``domains`` say which share of the prompts each should have.
        """
        ...

    def state(self) -> dict[str, Any]:
        """JSON-able state, for ``restore``."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Filter(Protocol):
    """Decides whether a scored group trains (curation.accept)."""

    def reject(self, group: ScoredGroup) -> str | None:
        """None accepts the group; otherwise the reason, one short phrase that is counted."""
        ...
