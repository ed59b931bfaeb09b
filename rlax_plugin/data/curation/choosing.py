"""Chooses prompts by their measured pass rates, with a reason for each that is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.data.curation.intervals import beta_interval
from rlax_plugin.data.prompts.ids import among
from rlax_plugin.data.prompts.kept import schema

if TYPE_CHECKING:
    import pyarrow as pa

Bound = Literal["mean", "posterior"]

TOO_HARD, TOO_EASY, UNMEASURED = "too hard", "too easy", "unmeasured"
CONTAMINATED = "in an evaluation set"
REASONS = (TOO_HARD, TOO_EASY, UNMEASURED, CONTAMINATED)

MASS = 0.9
_ROUNDING = 1e-9  # 0.2 is in 0.2..0.8, however it was computed


@dataclass(frozen=True, slots=True)
class Rule:
    """The conditions under which a prompt is kept.
    Attributes:
      low, high: range of pass rates, both ends included.
      bound: ``mean``: the share of a prompt's samples that passed must lie in the range;
        ``posterior``: the 90 % interval of its pass rate must overlap it, which also keeps prompts
        with too few samples to tell.
      drop_unmeasured: drops prompts without a measurement.
    """

    low: float
    high: float
    bound: Bound = "mean"
    drop_unmeasured: bool = False


def parsed_range(text: str) -> tuple[float, float]:
    """Reads ``0.2..0.8``.

    Raises:
      ConfigError: the text is not a range of pass rates.
    """
    low, dots, high = text.partition("..")
    try:
        found = (float(low), float(high))
    except ValueError:
        found = (np.nan, np.nan)
    if not dots or not all(0 <= rate <= 1 for rate in found):
        reason = "must be two pass rates from 0 to 1, such as 0.2..0.8"
        raise ConfigError("--keep", text, reason)
    if found[0] > found[1]:
        reason = f"must have the lower pass rate first, such as {high}..{low}"
        raise ConfigError("--keep", text, reason)
    return found


def choose(found: pa.Table, rule: Rule, without: pa.Array | None = None) -> pa.Table:
    """Decides for each prompt whether it is kept, in their order, and gives the reason if not.

    Args:
      found: see ``MeasuredRates.by_id``; no passed and no failed sample: unmeasured.
      without: ids that are dropped regardless of their pass rate.

    Returns:
      A table with the columns of ``kept.schema``.
    """
    import pyarrow as pa

    passed, failed = (found.column(name).to_numpy() for name in ("passed", "failed"))
    scored = passed + failed
    alpha, beta = passed + 1, failed + 1
    low, high = _intervals(alpha, beta)
    at_least, at_most = low, high
    if rule.bound == "mean":
        at_least = at_most = passed / np.maximum(scored, _ROUNDING)
    measured = scored > 0
    reason = np.full(len(scored), -1, np.int8)
    reason[measured & (at_most < rule.low - _ROUNDING)] = REASONS.index(TOO_HARD)
    reason[measured & (at_least > rule.high + _ROUNDING)] = REASONS.index(TOO_EASY)
    reason[~measured] = REASONS.index(UNMEASURED)
    kept = (reason < 0) | (~measured & (not rule.drop_unmeasured))
    if without is not None:
        clash = among(found.column("id"), without)
        kept, reason[clash] = kept & ~clash, REASONS.index(CONTAMINATED)
    decided = {
        "mean": alpha / (alpha + beta),
        "low": low,
        "high": high,
        "kept": kept,
        "reason": np.array([*REASONS, None], object)[reason],
    }
    measurements = {name: found.column(name) for name in ("id", "domain", "passed", "failed")}
    return pa.table(measurements | decided, schema=schema())


def _intervals(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns 90 % intervals, computed once for each distinct pair of counts."""
    pairs, place = np.unique(alpha + 1j * beta, return_inverse=True)
    low, high = beta_interval(pairs.real, pairs.imag, MASS)
    return low[place], high[place]
