"""The objective: one sum with five slots, filled by plug-ins (RLAX, https://arxiv.org/abs/2512.06392).

    J = sum_i sum_t sg[agg_it * is_it * corrections_it] * (sg[A_it] * grad_1_it + grad_2_it)

``sg`` is stop-gradient and is applied here, so no slot can leak a gradient through a weight. A loss
takes log-probabilities, never a model, and returns a sum and a weight: sums over micro-batches
divided by the sum of weights is exact however unevenly the tokens are spread.

JAX is imported when a loss is made, not with this module: ``rlax check`` resolves an objective
without it.

Suffixes name axes: ``_bt`` is [rows, length], ``_g`` the samples of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlax_plugin.config import Choice, Objective
from rlax_plugin.errors import ConfigError, PluginError, TrainingError

if TYPE_CHECKING:
    import jax

GAP_BINS = 64
# Upper edges of the log-prob gap's histogram, nats: 1e-8 .. 1e2 in steps of a factor 1.45, then
# everything above (and NaN).
GAP_EDGES = np.append(np.logspace(-8, 2, GAP_BINS - 1), np.inf)


class TokenInputs(NamedTuple):
    """What a slot sees of each token; every array is float32 [rows, length] and 0 on padding.

    Attributes:
      logprobs_bt: log pi_theta of the target token, with gradient, temperature applied.
      behaviour_logprobs_bt: log mu, the sampler's log-probability of the same token.
      advantages_bt: A, the same for every token of a sample.
      mask_bt: 1 on tokens that train, 0 elsewhere.
    """

    logprobs_bt: jax.Array
    behaviour_logprobs_bt: jax.Array
    advantages_bt: jax.Array
    mask_bt: jax.Array


TokenFunction = Callable[[TokenInputs], Any]  # -> [rows, length]
"""A slot. It may also have

- ``metrics(inputs) -> {name: array_bt}``: reported as ``objective/<name>``, the mean over tokens;
- ``carries_behaviour_ratio = True``, if it multiplies the term by pi/mu: at most one slot may.
"""
Aggregation = Callable[[Any], tuple[Any, Any]]  # mask_bt -> (weights_bt, total_weight)
Advantage = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rewards_g, lengths_g) -> [g]
Loss = Callable[[Any, Mapping[str, Any]], tuple[Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Preset:
    """An algorithm: which part fills which slot. The config may override each of them."""

    aggregation: Choice
    advantage: Choice
    grad_1: Choice
    importance_weight: Choice = field(default_factory=lambda: Choice(name="one"))
    grad_2: Choice = field(default_factory=lambda: Choice(name="none"))
    corrections: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Slots:
    """The parts of one objective, built.

    Attributes:
      aggregation: mask_bt -> (weights_bt, total_weight).
      advantage: (rewards_g float64 with NaN for errored samples, lengths_g) -> float64 [g]; numpy,
        called by the controller; errored samples get 0 and do not enter the group's statistics.
      importance_weight: inputs -> weight_bt.
      grad_1: inputs -> term_bt, multiplied by the advantage.
      grad_2: inputs -> term_bt, added.
      corrections: inputs -> factor_bt, multiplied.
    """

    aggregation: Aggregation
    advantage: Advantage
    importance_weight: TokenFunction
    grad_1: TokenFunction
    grad_2: TokenFunction
    corrections: tuple[TokenFunction, ...] = ()


def resolve(objective: Objective, part: Callable[[str, Choice, str], Any]) -> Slots:
    """Builds the slots that the config asks for: the preset's, where it does not override them.

    Args:
      objective: the config's ``rlax.objective``.
      part: (kind, choice, dotted config key) -> the built part.

    Raises:
      ConfigError: the ratio to the sampler would be applied twice.
      PluginError: the preset's plug-in did not return a ``Preset``.
    """
    preset = part("objective", Choice(name=objective.preset), "rlax.objective.preset")
    if not isinstance(preset, Preset):
        raise PluginError(f"objective {objective.preset!r} built {preset!r}, expected a Preset")
    ratio_keys: list[str] = []

    def build(kind: str, key: str, choice: Choice) -> Any:
        key = f"rlax.objective.{key}"
        built = part(kind, choice, key)
        if getattr(built, "carries_behaviour_ratio", False):
            ratio_keys.append(f"{key} ({choice.name})")
        return built

    corrections = preset.corrections if objective.corrections is None else objective.corrections
    slots = Slots(
        build("aggregation", "aggregation", objective.aggregation or preset.aggregation),
        partial(
            group_advantages,
            build("advantage", "advantage", objective.advantage or preset.advantage),
        ),
        build(
            "importance_weight",
            "importance_weight",
            objective.importance_weight or preset.importance_weight,
        ),
        build("gradient_term", "grad_1", objective.grad_1 or preset.grad_1),
        build("gradient_term", "grad_2", objective.grad_2 or preset.grad_2),
        tuple(build("correction", f"corrections.{i}", c) for i, c in enumerate(corrections)),
    )
    if len(ratio_keys) > 1:
        raise ConfigError(
            "rlax.objective",
            objective.preset,
            f"multiplies by pi/mu more than once, in {' and in '.join(ratio_keys)}: keep one "
            "(a ratio as the term, or grad_1 'log_prob' with a weight or correction)",
        )
    return slots


def group_advantages(part: Advantage, rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    """Advantages of one group; errored samples (reward NaN) get 0 and influence no other.

    Args:
      part: the advantage slot; it sees scored samples only.
      rewards_g: float64 [g], NaN where scoring failed.
      lengths_g: int [g], completion tokens.

    Raises:
      TrainingError: the slot returned another shape, or a value that is not finite.
    """
    rewards_g = np.asarray(rewards_g, dtype=np.float64)
    lengths_g = np.asarray(lengths_g)
    if rewards_g.ndim != 1 or rewards_g.shape != lengths_g.shape:
        raise TrainingError(
            f"rewards {rewards_g.shape} and lengths {lengths_g.shape}: expected [g]"
        )
    scored_g = ~np.isnan(rewards_g)
    advantages_g = np.zeros(rewards_g.shape, dtype=np.float64)
    if scored_g.any():
        values = np.asarray(part(rewards_g[scored_g], lengths_g[scored_g]), dtype=np.float64)
        if values.shape != (int(scored_g.sum()),) or not np.isfinite(values).all():
            raise TrainingError(f"advantages of rewards {rewards_g}: got {values}")
        advantages_g[scored_g] = values
    return advantages_g


def make_loss(slots: Slots) -> Loss:
    """Returns the function that the trainer differentiates.

    It is called as ``loss(logprobs_bt, data)``: ``logprobs_bt`` [rows, length] holds log pi_theta
    of ``data["targets"]`` with the sampling temperature applied; ``data`` the arrays of
    ``rlax_plugin.batches``. It returns

    - loss_sum: float32 scalar, -J, to be minimised;
    - weight: float32 scalar; the loss of a step is sum(loss_sum) / sum(weight);
    - metrics: float32 sums (scalars, and ``gap_hist`` [64]) that add up over micro-batches;
      ``summarise`` turns them into numbers to report.

    What padding holds, even NaN, changes no bit of the three or of the gradient.
    """
    import chex
    import jax
    import jax.numpy as jnp

    stop = jax.lax.stop_gradient
    slot_functions = (slots.importance_weight, slots.grad_1, slots.grad_2, *slots.corrections)

    def loss(logprobs_bt: jax.Array, data: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        names = ("rl_mask", "rl_advantages", "rl_behaviour_logprobs", "rl_staleness")
        chex.assert_rank(logprobs_bt, 2)
        chex.assert_equal_shape([logprobs_bt, *(data[name] for name in names)])
        trained_bt = data["rl_mask"] > 0

        def masked(x_bt: Any) -> jax.Array:
            # Selected before any arithmetic, so that neither value nor cotangent of padding counts.
            return jnp.where(trained_bt, x_bt.astype(jnp.float32), 0.0)

        inputs = TokenInputs(
            logprobs_bt=masked(logprobs_bt),
            behaviour_logprobs_bt=masked(data["rl_behaviour_logprobs"]),
            advantages_bt=stop(masked(data["rl_advantages"])),
            mask_bt=trained_bt.astype(jnp.float32),
        )
        weights_bt, weight = slots.aggregation(inputs.mask_bt)
        weights_bt = weights_bt * slots.importance_weight(inputs)
        for correction in slots.corrections:
            weights_bt = weights_bt * correction(inputs)
        terms_bt = inputs.advantages_bt * slots.grad_1(inputs) + slots.grad_2(inputs)
        chex.assert_equal_shape([weights_bt, terms_bt, logprobs_bt])
        loss_sum = -masked(stop(weights_bt) * terms_bt).sum()

        frozen = TokenInputs(*map(stop, inputs))
        metrics = _metric_sums(frozen, data["rl_staleness"])
        for function in slot_functions:
            measure = getattr(function, "metrics", None)
            for name, value_bt in (measure(frozen) if measure else {}).items():
                key = f"objective/{name}"
                if key in metrics:
                    raise PluginError(f"two slots of the objective report the metric {name!r}")
                metrics[key] = masked(value_bt).sum()
        return loss_sum, stop(jnp.asarray(weight, jnp.float32)), metrics

    return loss


def _metric_sums(inputs: TokenInputs, staleness_bt: jax.Array) -> dict[str, jax.Array]:
    """Sums over tokens; the gap between trainer and sampler only where both held equal weights."""
    import jax.numpy as jnp

    log_ratio_bt = inputs.logprobs_bt - inputs.behaviour_logprobs_bt
    ratio_bt = jnp.exp(log_ratio_bt)
    means_bt = {
        "ratio": ratio_bt,
        "entropy": -inputs.logprobs_bt,
        "kl": ratio_bt - 1.0 - log_ratio_bt,
        "advantage": inputs.advantages_bt,
        "advantage_abs": jnp.abs(inputs.advantages_bt),
    }
    metrics = {f"objective/{k}": (v_bt * inputs.mask_bt).sum() for k, v_bt in means_bt.items()}
    metrics["tokens"] = inputs.mask_bt.sum()
    metrics["rows"] = inputs.mask_bt.max(axis=1).sum()

    fresh_bt = (inputs.mask_bt > 0) & (staleness_bt == 1)
    gap_bt = jnp.where(fresh_bt, jnp.abs(log_ratio_bt), 0.0)
    # ``not <=`` instead of ``>`` counts NaN in the last bin. XLA fuses the comparison into the sum.
    above_bte = fresh_bt[..., None] & ~(gap_bt[..., None] <= GAP_EDGES[:-1].astype(np.float32))
    above_e = above_bte.sum(axis=(0, 1), dtype=jnp.float32)
    count = fresh_bt.sum(dtype=jnp.float32)
    metrics["gap_sum"] = gap_bt.sum()
    metrics["gap_count"] = count
    metrics["gap_hist"] = jnp.append(count, above_e) - jnp.append(above_e, 0.0)
    return metrics


def gap_quantile(hist: np.ndarray, q: float) -> float:
    """Upper edge, in nats, of the histogram bin that holds the quantile ``q``; q = 1 is the max.

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


def summarise(sums: Mapping[str, Any]) -> dict[str, float]:
    """Numbers to report from the metric sums of a whole step (all micro-batches added up).

    Returns:
      ``objective/tokens``, ``objective/rows``, the mean over tokens of every ``objective/*`` sum,
      and ``logprob_gap/{mean,p95,max,tokens}`` (nats, over tokens of staleness 1). What would be a
      mean over nothing is left out.
    """
    tokens = float(sums["tokens"])
    report = {"objective/tokens": tokens, "objective/rows": float(sums["rows"])}
    if tokens > 0:
        report |= {k: float(v) / tokens for k, v in sums.items() if k.startswith("objective/")}
    fresh = float(sums["gap_count"])
    report["logprob_gap/tokens"] = fresh
    if fresh > 0:
        hist = np.asarray(sums["gap_hist"])
        report["logprob_gap/mean"] = float(sums["gap_sum"]) / fresh
        report["logprob_gap/p95"] = gap_quantile(hist, 0.95)
        report["logprob_gap/max"] = gap_quantile(hist, 1.0)
    return report
