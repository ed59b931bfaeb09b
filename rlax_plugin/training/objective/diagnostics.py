"""The metrics of a step's objective: sums that add up over micro-batches, then numbers.

Sums, because means do not add up: micro-batches hold different numbers of tokens. d is
log pi - log mu per token, w = exp(min(d, 40)); everything is over trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin.training.objective.inputs import TokenInputs
from rlax_plugin.training.objective.ratios import kl_estimate, ratio_of
from rlax_plugin.training.objective.terms import reported

if TYPE_CHECKING:
    import jax

GROUP_GAPS = ("group_gap", "group_tokens")
"""Sums for each group of the batch, at its place from 1: |d|, and tokens, of any staleness."""
GAP_SUMS = frozenset({"gap_sum", "gap_count", "gap_hist", *GROUP_GAPS})
_BASE = 16
GROUP_PLACES = _BASE**2
"""Places of ``GROUP_GAPS``; the first is empty, and groups at later ones are not compared."""
_MOST_GAP = 100.0  # nats that one token adds to ``group_gap``, so that no single one decides
GAP_BINS = 64
# Upper edges of the log-prob gap's histogram, nats: 1e-8 .. 1e2 in steps of a factor 1.45, then
# everything above (and NaN).
GAP_EDGES = np.append(np.logspace(-8, 2, GAP_BINS - 1), np.inf)

GAP_DEPTHS = np.array([1, *(1 << k for k in range(7, 20))])
"""Smallest number of tokens before a token, for each row of ``gap_hist``: 1, 128, 256, ..., 2^19.

A fault of positions or caches begins at a depth; shorter contexts than 128 tokens have few.
"""

# What ``summarise`` makes of sums, beside their means: no slot may report one of these names.
DERIVED = frozenset(
    f"objective/{name}"
    for name in (
        *("tokens", "sequences", "chi_squared", "effective_sample_size", "perplexity_gap"),
        "explained_variance",
    )
)

# Sums that are not reported as their mean.
_RAW = ("behaviour/w", "behaviour/w2", "behaviour/logprob", "behaviour/behaviour_logprob")


def sums(
    inputs: TokenInputs, staleness_bt: jax.Array, position_bt: jax.Array | None = None
) -> dict[str, jax.Array]:
    """Returns sums over tokens; the trainer-sampler gap only where both held equal weights.

    Args:
      inputs: without gradients.
      staleness_bt: ``rl_staleness``.
      position_bt: ``targets_position``; None: all tokens count as shallow.

    Returns:
      ``objective/<name>``, whose mean over tokens is reported; ``behaviour/*``, ``gap_*``,
      ``tokens`` and ``sequences``, from which ``summarise`` derives metrics that are not means;
      and ``GROUP_GAPS``.
    """
    import jax
    import jax.numpy as jnp

    log_w_bt = inputs.logprobs_bt - inputs.behaviour_logprobs_bt
    w_bt = ratio_of(log_w_bt)
    means_bt = {
        "ratio": inputs.ratio_bt,
        "entropy": inputs.entropy_bt,
        "kl_k1": kl_estimate("k1", -log_w_bt, jnp),
        "kl_k3": kl_estimate("k3", -log_w_bt, jnp),
        "advantage": inputs.advantages_bt,
        "advantage_abs": jnp.abs(inputs.advantages_bt),
    }
    raw_bt = (w_bt, w_bt**2, inputs.logprobs_bt, inputs.behaviour_logprobs_bt)
    found = {f"objective/{k}": (v_bt * inputs.mask_bt).sum() for k, v_bt in means_bt.items()}
    found |= {k: (v_bt * inputs.mask_bt).sum() for k, v_bt in zip(_RAW, raw_bt, strict=True)}
    found["tokens"] = inputs.mask_bt.sum()
    found["sequences"] = inputs.sequence_count()

    fresh_bt = (inputs.mask_bt > 0) & (staleness_bt == 1)
    gap_bt = jnp.where(fresh_bt, jnp.abs(log_w_bt), 0.0)
    # ``not <=`` instead of ``>`` counts NaN in the last bin.
    above_bte = ~(gap_bt[..., None] <= GAP_EDGES[:-1].astype(np.float32))
    at_least_bte = jnp.insert(above_bte, 0, True, axis=-1).astype(jnp.float32)
    if position_bt is None:
        position_bt = jnp.zeros(gap_bt.shape, jnp.int32)
    depth_bt = jnp.searchsorted(GAP_DEPTHS, position_bt + 1, side="right", method="compare_all") - 1
    deep_btd = jax.nn.one_hot(depth_bt, len(GAP_DEPTHS)) * fresh_bt[..., None]
    at_least_de = jnp.einsum("btd,bte->de", deep_btd, at_least_bte)
    found["gap_sum"] = gap_bt.sum()
    found["gap_count"] = fresh_bt.sum(dtype=jnp.float32)
    found["gap_hist"] = at_least_de - jnp.pad(at_least_de[:, 1:], ((0, 0), (0, 1)))
    if (group_bt := inputs.batch.get("rl_group")) is not None:
        # By two digits: one-hot vectors of all places would take a hundred times the memory, and
        # a scatter is slow on a TPU. NaN is the trainer's own, and would spread over all places.
        tens_btp, ones_btp = (jax.nn.one_hot(x, _BASE) for x in jnp.divmod(group_bt, _BASE))
        most_bt = jnp.nan_to_num(jnp.minimum(jnp.abs(log_w_bt), _MOST_GAP))
        for name, x_bt in zip(GROUP_GAPS, (most_bt, inputs.mask_bt), strict=True):
            found[name] = jnp.einsum("bt,btp,btq->pq", x_bt, tens_btp, ones_btp).ravel()
    return found


_ROUNDING = 1e-24  # relative, of squares of float64
_RETURNS_SPREAD, _ERROR_SPREAD = "values/returns_spread", "values/error_spread"


def spread_of(value_n: np.ndarray, returns_n: np.ndarray) -> dict[str, float]:
    """Returns the sums of which ``summarise`` makes ``objective/explained_variance``.

    They are sums of squared deviations from the mean, of returns and of returns less values.

    Args:
      value_n: values of all trained tokens of a step, before the critic learns from them.
      returns_n: their targets.
    """
    spread = _spread(returns_n)
    if spread <= _ROUNDING * float((returns_n**2).sum()):
        spread = 0.0  # equal returns
    return {_RETURNS_SPREAD: spread, _ERROR_SPREAD: _spread(returns_n - value_n)}


def _spread(x_n: np.ndarray) -> float:
    return float(((x_n - x_n.mean()) ** 2).sum()) if x_n.size else 0.0


def gap_quantile(hist: np.ndarray, q: float) -> float:
    """Returns the upper edge, in nats, of the bin that holds the quantile ``q``; q = 1 is the max.

    Args:
      hist: [64] counts over ``GAP_EDGES``.
      q: in [0, 1].

    Returns:
      At most 1.45 times the true quantile (1e-8 for anything below); infinity above 1e2; NaN if
      nothing was counted.
    """
    hist = np.asarray(hist, dtype=np.float64)
    if hist.shape != (GAP_BINS,) or not 0 <= q <= 1:
        raise ValueError(f"expected {GAP_BINS} counts and 0 <= q <= 1, got {hist.shape}, {q}")
    cumulative = np.cumsum(hist)
    total = cumulative[-1]
    if total == 0:
        return float("nan")
    # The ceil(q n)-th smallest value, at least the first.
    rank = max(np.ceil(q * total), 1.0)
    return float(GAP_EDGES[np.searchsorted(cumulative, rank)])


def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a step from its sums over all micro-batches and updates.

    Returns:
      ``objective/tokens`` and ``objective/sequences``; the mean over tokens of every
      ``objective/*`` sum; of w, against the sampler, ``objective/chi_squared`` = E[w^2] - 1,
      ``objective/effective_sample_size`` = (sum w)^2 / (n sum w^2), in (0, 1], and
      ``objective/perplexity_gap``, the trainer's perplexity over the sampler's, less 1;
      ``objective/<name>`` of each further term of the loss, its sum over its weight;
      ``objective/explained_variance`` of the returns by the values of a critic, 1 - Var(returns -
      values) / Var(returns), if returns differ;
      ``logprob_gap/{mean,p95,max,tokens}`` (nats, over tokens of staleness 1), and the 95th
      percentile of each of several ``GAP_DEPTHS``. Means over nothing are left out, and what
      compares with the log-probs of logged samples that have none.
    """
    tokens = float(totals["tokens"])
    report = {"objective/tokens": tokens, "objective/sequences": float(totals["sequences"])}
    report |= reported(totals)
    if tokens > 0:
        report |= {k: float(v) / tokens for k, v in totals.items() if k.startswith("objective/")}
        w, w2, logprob, behaviour_logprob = (float(totals[name]) / tokens for name in _RAW)
        if np.isnan(behaviour_logprob):  # of logged samples without log-probs; others are checked
            of_behaviour = ("ratio", "kl_k1", "kl_k3")
            nothing = [f"objective/{name}" for name in of_behaviour]
            report = {k: v for k, v in report.items() if k not in nothing or not np.isnan(v)}
        else:
            report["objective/chi_squared"] = w2 - 1.0
            report["objective/effective_sample_size"] = w**2 / w2 if w2 > 0 else float("nan")
            report["objective/perplexity_gap"] = float(np.expm1(behaviour_logprob - logprob))
    if (spread := float(totals.get(_RETURNS_SPREAD, 0.0))) > 0:
        report["objective/explained_variance"] = 1.0 - float(totals[_ERROR_SPREAD]) / spread
    fresh = float(totals["gap_count"])
    report["logprob_gap/tokens"] = fresh
    if fresh > 0:
        hist_de = np.asarray(totals["gap_hist"])
        hist = hist_de.sum(axis=0)
        report["logprob_gap/mean"] = float(totals["gap_sum"]) / fresh
        report["logprob_gap/p95"] = gap_quantile(hist, 0.95)
        report["logprob_gap/max"] = gap_quantile(hist, 1.0)
        if len(depths := np.flatnonzero(hist_de.any(axis=1))) > 1:
            for depth in depths:
                name = f"logprob_gap/p95_from_{GAP_DEPTHS[depth]}"
                report[name] = gap_quantile(hist_de[depth], 0.95)
    return report
