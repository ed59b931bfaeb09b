"""Statistics of log-prob gaps by context depth, the verdict on them, and what to do.

A gap is |log pi_trainer - log pi_engine| of a sampled token, in nats, with equal weights. Its depth
is the number of tokens before it. Numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

KEPT, UPDATED, KEPT_UPDATED = "kept contexts", "after an update", "kept contexts, after an update"
PACKED = "packed rows"

# The measured classes (docs/objectives.md): in float32 the 95th percentile is below 1e-5 and the
# canary's tolerance is 1e-4; in bfloat16 they are .06 and .5.
_P95_SHARE = 5.0
# Rounding is alike everywhere. A cell so many times as large as the median is a fault, even within
# the bounds of a coarse dtype, unless it is tiny.
_UNLIKE, _TINY_SHARE = 6.0, 10.0
_FEWEST = 8  # tokens of which a percentile says something


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of one way to generate and compute tokens.

    Attributes:
      name: of the way, such as ``alone``.
      depth_n: int [n], number of tokens before each, at least 1.
      gap_n: float [n], nats; what is no number counts as infinite.
    """

    name: str
    depth_n: np.ndarray
    gap_n: np.ndarray


@dataclass(frozen=True, slots=True)
class Cell:
    """Quantiles of the gaps of a way, at some depths.

    Attributes:
      name: of the way.
      depth: the smallest one; depths below twice as many tokens belong to it. 0: all depths.
    """

    name: str
    depth: int
    tokens: int
    p50: float
    p95: float
    max: float


def cells(gaps: Gaps) -> list[Cell]:
    """Returns the quantiles over all depths, then those of each power of two with tokens."""
    gap_n = np.where(np.isfinite(gaps.gap_n), gaps.gap_n, np.inf).astype(np.float64)
    octave_n = np.log2(np.maximum(gaps.depth_n, 1)).astype(int)
    deeper = (_cell(gaps.name, 1 << int(o), gap_n[octave_n == o]) for o in np.unique(octave_n))
    return [_cell(gaps.name, 0, gap_n), *deeper]


def _cell(name: str, depth: int, gap_n: np.ndarray) -> Cell:
    p50, p95, most = np.quantile(gap_n, (0.5, 0.95, 1.0), method="higher")
    return Cell(name, depth, gap_n.size, float(p50), float(p95), float(most))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest gaps that rounding explains, in nats.

    Attributes:
      p95: of the 95th percentile of any cell.
      max: of any token.
    """

    p95: float
    max: float

    @classmethod
    def of(cls, tolerance: float, temperature: float) -> Bounds:
        """Returns the bounds that belong to the canary's tolerance, which is that of the dtype.

        Args:
          temperature: of the samples; below 1 it makes log-probs, and their gaps, larger.
        """
        most = tolerance / min(1.0, temperature or 1.0)
        return cls(most / _P95_SHARE, most)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a table.

    Attributes:
      wrong: the cells at some depth that rounding does not explain.
      text: what they have in common, and what to do.
    """

    wrong: Sequence[Cell]
    text: str

    @property
    def passes(self) -> bool:
        return not self.wrong


def judge(table: Sequence[Cell], bounds: Bounds, exact: bool) -> Verdict:
    """Judges the cells of all ways.

    Args:
      exact: True if the bounds are those of float32.
    """
    by_depth = [cell for cell in table if cell.depth]
    wrong = list(_wrong(by_depth, bounds, exact))
    return Verdict(wrong, _advice(by_depth, wrong, exact))


def _wrong(by_depth: Sequence[Cell], bounds: Bounds, exact: bool) -> Iterator[Cell]:
    most, counted = bounds.p95, [cell.p95 for cell in by_depth if cell.tokens >= _FEWEST]
    if counted:
        unlike = _UNLIKE * float(np.median(counted))
        if exact:  # rounding grows with the layers: 3e-5 for the 30 of SmolLM2 in another engine
            most = max(most, min(unlike, bounds.max / 2))
        else:
            most = min(most, max(unlike, bounds.p95 / _TINY_SHARE))
    for cell in by_depth:
        many = cell.tokens >= _FEWEST
        if cell.max > bounds.max or (many and cell.p95 > most):
            yield cell


_CORRECTION = (
    "rlax.objective.corrections: [{name: truncated_importance_sampling}] with "
    "rlax.objective.old_policy: proximal"
)
_NONE = "No correction repairs this"


def _advice(by_depth: Sequence[Cell], wrong: Sequence[Cell], exact: bool) -> str:
    if not wrong and exact:
        return "trainer and engine compute the same: no correction is needed for fresh samples"
    if not wrong:
        return (
            "the differences are those of rounding. They bias no run by much; to correct them, use "
            f"{_CORRECTION}, or dtype: float32 where the memory allows it"
        )
    ways, begins = {cell.name: None for cell in wrong}.keys(), min(cell.depth for cell in wrong)
    only = f"only {'; '.join(ways)}"
    right = [cell for cell in by_depth if cell not in wrong]
    if ways <= {KEPT, KEPT_UPDATED, UPDATED}:
        return (
            f"{only}: the engine reads a cache of other tokens or of older weights. It must drop "
            "kept contexts and cached prefixes when weights change; with jetstream, "
            f"rlax.rollouts.engine.keep_contexts: false avoids them. {_NONE}"
        )
    if ways == {PACKED}:
        return (
            f"{only}: the trainer lets sequences of a row see each other. Set rlax.batches."
            f"sequences_per_row: 1 and shared_prompts: false, or another attention. {_NONE}"
        )
    deep = sum(cell.depth >= begins for cell in right)
    if begins > min(cell.depth for cell in by_depth) and deep <= len(wrong):
        return (
            f"from depth {begins:,} on, and not before: compare what depends on positions in "
            "trainer and engine, such as rope_*, windows of attention, and the lengths that caches "
            f"were made for. {_NONE}"
        )
    if ways == {cell.name for cell in by_depth} and len(right) <= len(wrong):
        small = max(cell.p95 for cell in wrong) < 1.0
        return (
            "everywhere: the engine computes in another dtype or precision, or another model. "
            "Compare dtype, matmul_precision, quantization and rlax.rollouts.engine with the "
            "trainer's keys." + f" If it is intended, correct it: {_CORRECTION}." * small
        )
    return f"{only}: programs that do not agree with the others. Report it with --json. {_NONE}"
