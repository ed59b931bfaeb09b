"""Rows of the table of metrics for the stage ``objective``; see ``names``."""

from __future__ import annotations

_KL = "if the KL coefficient is above 0"
_CLIP = (
    "if grad_1 is `clipped_ratio`, `sequence_ratio`, `sequence_ratio_token` or "
    "`clipped_geometric_mean`"
)
_CRITIC = "if `rlax.signals` has a critic"
_TIS = "if corrections has `truncated_importance_sampling` with `above_cap: truncate`"

Row = tuple[str, str, str] | tuple[str, str, str, str]
"""A row of the table: (name, unit, meaning), or (name, unit, meaning, when)."""

OBJECTIVE_ROWS: tuple[Row, ...] = (
    (
        "tokens",
        "tokens",
        "number of tokens that the step is trained on, counted once per epoch",
    ),
    (
        "sequences",
        "samples",
        "number of samples that the step is trained on, counted once per epoch",
    ),
    ("ratio", "ratio", "mean of r"),
    (
        "advantage",
        "reward",
        "mean of A; its unit depends on the normalisation of advantages",
    ),
    ("advantage_abs", "reward", "mean of the absolute value of A"),
    ("entropy", "nats", "mean entropy of pi_theta over the vocabulary"),
    ("kl_k1", "nats", "KL(mu, pi_theta), estimator K1"),
    ("kl_k3", "nats", "KL(mu, pi_theta), estimator K3"),
    ("chi_squared", "1", "mean of w^2, minus 1"),
    (
        "effective_sample_size",
        "fraction",
        "(sum w)^2 / (n sum w^2), where n is the number of tokens",
    ),
    (
        "perplexity_gap",
        "fraction",
        "perplexity of the tokens under pi_theta, divided by that under mu, minus 1",
    ),
    ("reference_kl_k1", "nats", "KL to the reference policy, estimator K1", _KL),
    ("reference_kl_k3", "nats", "KL to the reference policy, estimator K3", _KL),
    (
        "kl_coefficient",
        "1/nat",
        "coefficient of the KL penalty in this step",
        "if the config has `kl.adaptive`",
    ),
    (
        "kl_of_target",
        "ratio",
        "measured KL of the sampler to the reference policy, divided by `kl.adaptive.target`",
        "if the config has `kl.adaptive`",
    ),
    (
        "kl_penalty",
        "nats",
        "KL in the loss, times its coefficient, by its own aggregation",
        "if `kl.aggregation` is set",
    ),
    (
        "reprefill_missed",
        "fraction",
        "tokens for which pi_old is the proximal policy, because the weights that "
        "generated them are not available",
        "if `old_policy` is `reprefill`",
    ),
    (
        "clip_fraction_high",
        "fraction",
        "tokens with A > 0 and a ratio above 1 + high, which are clipped",
        _CLIP,
    ),
    (
        "clip_fraction_low",
        "fraction",
        "tokens with A < 0 and a ratio below 1 - low, which are clipped",
        _CLIP,
    ),
    (
        "dual_clip_fraction",
        "fraction",
        "tokens with A < 0 and a ratio above `dual_clip`, which are clipped",
        "if grad_1 is `clipped_ratio` with `dual_clip`",
    ),
    (
        "weight_clip_fraction_high",
        "fraction",
        "tokens whose ratio was reduced to 1 + high",
        "if importance_weight is `clipped`",
    ),
    (
        "weight_clip_fraction_low",
        "fraction",
        "tokens whose ratio was raised to 1 - low",
        "if importance_weight is `clipped`",
    ),
    (
        "truncated_fraction",
        "fraction",
        "tokens whose ratio w was reduced to the cap",
        "if importance_weight is `truncated`",
    ),
    (
        "topr_truncated_fraction",
        "fraction",
        "tokens with A < 0 whose ratio w, or whose sequence's ratio, was reduced to 1",
        "if importance_weight is `topr`",
    ),
    (
        "decoupled_truncated_fraction",
        "fraction",
        "tokens whose ratio m was reduced to the cap",
        "if importance_weight is `decoupled` with `above_cap: truncate`",
    ),
    (
        "decoupled_masked_fraction",
        "fraction",
        "tokens masked because m is above the cap",
        "if importance_weight is `decoupled` with `above_cap: mask`",
    ),
    (
        "tis_truncated_fraction",
        "fraction",
        "tokens whose ratio m was reduced to the cap",
        _TIS,
    ),
    (
        "tis_masked_fraction",
        "fraction",
        "tokens masked because m is above the cap",
        "if corrections has `truncated_importance_sampling` with `above_cap: mask`",
    ),
    (
        "tis_raised_fraction",
        "fraction",
        "tokens whose ratio m was raised to the floor",
        "if corrections has `truncated_importance_sampling` with a `floor`",
    ),
    (
        "tis_low_masked_fraction",
        "fraction",
        "tokens masked because m is below the floor",
        "if corrections has `truncated_importance_sampling` with `below_floor: mask`",
    ),
    (
        "trust_region_masked_fraction",
        "fraction",
        "tokens whose probability has left the trust region",
        "if grad_1 is `trust_region`",
    ),
    (
        "icepop_masked_fraction",
        "fraction",
        "tokens masked because m is below low or above high",
        "if corrections has `icepop`",
    ),
    (
        "sequence_mask_masked_fraction",
        "fraction",
        "tokens masked because the geometric mean of m over their sequence is below"
        " low or above high",
        "if corrections has `sequence_mask`",
    ),
    (
        "veto_masked_fraction",
        "fraction",
        "tokens masked because their sequence has a token with m below the threshold",
        "if corrections has `veto`",
    ),
    (
        "running_value",
        "reward",
        "mean of the value that a prompt had before the batch",
        "if `rlax.signals` has `running_value`, or trainer `bigram` its option of this name",
    ),
    ("value", "reward", "mean value that a critic gave a token, before it learned", _CRITIC),
    (
        "returns",
        "reward",
        "mean of what these values should have been: the advantage of `gae` before whitening, with "
        "`critic_lam`, plus the value",
        _CRITIC,
    ),
    (
        "explained_variance",
        "1",
        "share of the variance of the returns that the values explain, 1 - Var(returns - values) / "
        "Var(returns), over the trained tokens of the step; below 0: their mean would do better",
        f"{_CRITIC}, and the returns of the step differ",
    ),
    (
        "value_loss",
        "reward squared",
        "loss of the critic, mean over its updates of the step",
        "if `rlax.signals` has `critic` or `value_head`",
    ),
    (
        "value_clipped",
        "fraction",
        "tokens whose clipped value counts in the critic's loss, so that they give no gradient",
        "if `rlax.signals` has `critic` or `value_head`",
    ),
    (
        "<name>",
        "its own",
        "mean of the value that a slot of a plug-in returns from its method `metrics`, or that a "
        "signal has in `metrics`; or the sum of a term that a signal adds to the loss, divided by "
        "the term's weight",
        "if a slot of a plug-in, or a signal, has `metrics`, or a signal has `terms`",
    ),
)
