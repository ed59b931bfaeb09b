"""The KL penalty in the loss: its estimate with the gradient that the config asks for.

Suffix ``_bt``: [rows, length].
"""

from __future__ import annotations

from typing import Any

from rlax_plugin.config import KL
from rlax_plugin.training.objective.inputs import TokenInputs
from rlax_plugin.training.objective.ratios import kl_estimate, ratio_of

KL_TERM = "kl_penalty"
"""The name of the term of the loss that is the KL with an aggregation of its own."""


def kl_of_tokens(kl: KL, inputs: TokenInputs) -> Any:
    """Returns the KL estimate of each token, without beta; see ``config.KL``.

    ``gradient: k2`` is verl's ``k3+``, ``score_function`` is NeMo-RL's
    (https://arxiv.org/abs/2506.09477), and ``times: ratio`` is the unbiased estimate of
    DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556), also in TRL, slime and cosmos-rl.
    """
    import jax
    import jax.numpy as jnp

    stop = jax.lax.stop_gradient
    log_ratio_bt = inputs.logprobs_bt - inputs.reference_logprobs_bt
    within_bt: Any = True
    if kl.clamp_log_ratio is not None:
        within_bt = jnp.abs(log_ratio_bt) <= kl.clamp_log_ratio
        log_ratio_bt = log_ratio_bt.clip(-kl.clamp_log_ratio, kl.clamp_log_ratio)
    estimate_bt = kl_estimate(kl.estimator, log_ratio_bt, jnp)
    factor_bt: Any = None
    if kl.gradient == "score_function":
        factor_bt = jnp.exp(inputs.logprobs_bt - stop(inputs.logprobs_bt))
    if kl.times is not None:
        ratio_bt = _ratio(kl, inputs)
        factor_bt = ratio_bt if factor_bt is None else factor_bt * ratio_bt
    if factor_bt is not None:
        # Clamped log ratios have no gradient at all.
        estimate_bt = estimate_bt * jnp.where(within_bt, factor_bt, stop(factor_bt))
    if kl.clamp is not None:
        estimate_bt = estimate_bt.clip(-kl.clamp, kl.clamp)
    if kl.gradient == "k2":
        d_bt = inputs.logprobs_bt - inputs.reference_logprobs_bt
        square_bt = kl_estimate("k2", d_bt, jnp)
        return square_bt - stop(square_bt) + stop(estimate_bt)
    return estimate_bt


def _ratio(kl: KL, inputs: TokenInputs) -> Any:
    if kl.times == "sequence_ratio":
        return ratio_of(inputs.sequence_mean(inputs.log_ratio_bt))
    if kl.times == "behaviour_ratio":
        return ratio_of(inputs.logprobs_bt - inputs.behaviour_logprobs_bt)
    return inputs.ratio_bt
