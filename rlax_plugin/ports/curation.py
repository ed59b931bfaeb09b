"""Interfaces of curation: samplers choose prompts, filters judge groups, selections samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlax_plugin.base.types import Prompt, ScoredGroup, TrainBatch

if TYPE_CHECKING:
    import numpy as np


class PassRates(Protocol):
    """Read-only view of the pass-rate table, by index into ``prompts``, in whole arrays.

    Pass only the prompts that you consider, not all of a million: ``indices`` may be any integers
    in an array or a list, and each result has their shape. None means all prompts.

    Attributes:
      version: the newest policy version with an observed sample. Samples count less the older they
        are than this version (``rlax.curation.pass_rate_half_life``).
      outcomes: numbers of the run's scored groups, in this order: all samples passed, none passed,
        mixed. A change since the last call shows that new groups were scored.
    """

    @property
    def version(self) -> int: ...

    @property
    def outcomes(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def counts(
        self, indices: np.ndarray | Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decayed counts (passed, failed) of samples; float64, 0 for a prompt never measured."""
        ...

    def posterior(
        self, indices: np.ndarray | Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (alpha, beta) of the Beta posterior of the pass rate; float64, never 0.

        A sampler that uses ``rng.beta(alpha, beta)`` as the rate explores uncertain prompts in
        proportion to their uncertainty (Thompson sampling).
        """
        ...

    def measured(self, indices: np.ndarray | Sequence[int] | None = None) -> np.ndarray:
        """True for prompts with observations from this run or with a prior; bool."""
        ...

    def streaks(self, indices: np.ndarray | Sequence[int] | None = None) -> np.ndarray:
        """Length of the current streak of groups; int32, 0 after a mixed group.

        Positive if all samples passed in each of these groups, negative if none did.
        """
        ...


class Sampler(Protocol):
    """Chooses the prompts to issue next (curation.sample)."""

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        """Returns ``count`` indices into ``prompts``; all randomness must come from ``rng``.

        A dataset passes an ``rlax_plugin.api.PromptTable``: its ``id_at(index)`` is cheaper than
        reading the whole prompt, and its ``domains`` give the share of prompts for each domain.
        """
        ...

    def state(self) -> dict[str, Any]:
        """JSON-compatible state, for ``restore``."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Filter(Protocol):
    """Decides whether a scored group is used for training (curation.accept)."""

    def reject(self, group: ScoredGroup) -> str | None:
        """None to accept the group; otherwise the reason, a short phrase that is counted."""
        ...


class Selection(Protocol):
    """Decides which samples of a batch train, and how often (curation.select)."""

    def repeats(
        self, batch: TrainBatch, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Returns for each group of the batch int [episodes], how often each episode trains.

        0: not at all. A batch that is made again, after a restart, gets the same ``rng``; all
        randomness must come from it.

        Args:
          batch: the groups, and their advantages over all of their samples.
          count: the rows of the batch: the largest sum of all numbers, which must be at least 1.
            An episode without a reward must have 0.
        """
        ...
