"""The algorithm: a preset, its slots, and the keys that override it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.config.base import Choice, DefaultPart, PathText, PositiveInt, Section

# Options without a name belong to the part that the preset has in this slot.
Slot = Annotated[Choice, DefaultPart("")]


class KL(Section):
    """KL divergence to the reference policy; the estimators are J. Schulman's.

    With d = log pi - log pi_ref per token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1
    (http://joschu.net/blog/kl-approx.html).
    """

    coefficient: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="beta, the coefficient of the KL penalty, per nat; 0: no penalty, and no "
        "reference policy is kept",
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3",
        description="estimator of the divergence, computed from the log-probs of the generated "
        "tokens",
    )
    placement: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: -beta K is added to grad_2 and multiplied by the importance weight and "
        "corrections; reward: -beta K, computed from the sampler's log-probs, is added to each "
        "token's reward before advantages are computed",
    )


class Overlong(Section):
    """DAPO's soft overlong punishment, added to rewards (https://arxiv.org/abs/2503.14476, eq. 13).

    penalty * -1 * clip((length - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1).
    """

    penalty: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="penalty for a sample of max_tokens, subtracted from its reward; 0: off",
    )
    buffer_tokens: PositiveInt | None = Field(
        default=None,
        description="L_c: number of tokens before max_tokens over which the penalty grows from 0; "
        "null: a fifth of max_tokens",
    )
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="L_max: length from which the full penalty applies; null: "
        "rlax.rollouts.max_new_tokens",
    )


SLOTS = ("aggregation", "importance_weight", "advantage", "grad_1", "grad_2")
"""Fields of ``Algorithm`` that a part fills."""


class Algorithm(Section):
    """What defines an algorithm: the slots, and the numbers that all slots share.

    The config's values override those of the preset. ``kl``, ``overlong`` and the options of a slot
    are merged key by key, unless the config names another part for the slot.
    """

    aggregation: Slot | None = Field(
        default=None,
        description="how the terms of all tokens become one sum and one weight, such as with "
        "equal weights per token or per sample",
    )
    importance_weight: Slot = Field(
        default=Choice(name="one"),
        description="factor of every token's term, without gradient, such as an importance ratio",
    )
    advantage: Slot | None = Field(
        default=None, description="how advantages are computed from rewards"
    )
    grad_1: Slot | None = Field(
        default=None, description="gradient term that is multiplied by the advantage"
    )
    grad_2: Slot = Field(
        default=Choice(name="none"), description="gradient term that is added without the advantage"
    )
    corrections: tuple[Choice, ...] = Field(
        default=(),
        description="factors per token that compensate for the difference between sampler and "
        "trainer; several are multiplied",
    )
    old_policy: Literal["sampler", "reprefill", "proximal"] = Field(
        default="sampler",
        description="policy in the denominator of the ratio. sampler: log-probs that came with "
        "the samples; reprefill: log-probs computed again by the trainer, with the weights that "
        "generated the samples; proximal: those of the weights just before the batch's first "
        "update",
    )
    kl: KL = KL()
    entropy_coefficient: float = Field(
        default=0.0,
        description="coefficient of the policy's entropy per token, per nat; 0: no entropy bonus",
    )
    overlong: Overlong = Overlong()
    mask_truncated: bool = Field(
        default=False,
        description="exclude samples that were cut at max_new_tokens from training; their rewards "
        "still count in the advantages of their group",
    )


class Reference(Section):
    """The frozen policy from which KL is measured; kept only if ``kl.coefficient`` is above 0."""

    path: PathText = Field(
        default="",
        description="directory of parameters that the trainer can read; empty: those that training "
        "started from, stored under <run_dir>/reference",
    )


class Objective(Algorithm):
    """The algorithm: a preset, and keys that override it. Keys not set have the preset's value."""

    preset: str = Field(
        default="grpo", description="published algorithm to start from; rlax objective lists them"
    )
    epochs: PositiveInt = Field(default=1, description="number of passes over one batch")
    mini_batches: PositiveInt = Field(
        default=1,
        description="number of updates per pass, each on an equal share of the rows; one RL step "
        "is epochs * mini_batches updates and publishes its last weights",
    )
    reference: Reference = Reference()
    allow_uncorrected: bool = Field(
        default=False,
        description="allow samples older than one version without a correction, and several "
        "updates per batch without an importance ratio; both are errors otherwise",
    )

    @property
    def updates_per_step(self) -> int:
        """Updates of the weights in one RL step."""
        return self.epochs * self.mini_batches
