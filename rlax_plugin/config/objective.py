"""The algorithm: a preset, its slots, and what is to differ from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.config.base import Choice, DefaultPart, PathText, PositiveInt, Section

# Options without a name are of the part that the preset has in this slot.
Slot = Annotated[Choice, DefaultPart("")]


class KL(Section):
    """KL divergence to the reference policy; the estimators are J. Schulman's.

    With d = log pi - log pi_ref per token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1
    (http://joschu.net/blog/kl-approx.html).
    """

    coefficient: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="beta, per nat; 0: no KL, and no reference policy is kept"
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="of the divergence, from the log-probs of the tokens generated"
    )
    placement: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: -beta K joins grad_2, multiplied by is and corrections as the rest. "
        "reward: each token is paid -beta K, measured on the sampler's log-probs, before "
        "advantages are computed",
    )


class Overlong(Section):
    """DAPO's soft overlong punishment, added to rewards (https://arxiv.org/abs/2503.14476, eq. 13).

    penalty * -1 * clip((length - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1).
    """

    penalty: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="taken from the reward at max_tokens, in reward units; 0: off"
    )
    buffer_tokens: PositiveInt | None = Field(
        default=None, description="L_c; null: a fifth of max_tokens"
    )
    max_tokens: PositiveInt | None = Field(
        default=None, description="L_max; null takes rlax.rollouts.max_new_tokens"
    )


SLOTS = ("aggregation", "importance_weight", "advantage", "grad_1", "grad_2")
"""Fields of ``Algorithm`` that a part fills."""


class Algorithm(Section):
    """What makes an algorithm: the slots, and numbers that all of them understand.

    A preset sets what it needs; what a config sets as well, wins. ``kl``, ``overlong`` and the
    options of a slot are merged key by key, those of a slot unless it names another part.
    """

    aggregation: Slot | None = Field(
        default=None, description="how the terms of tokens become one sum and one weight"
    )
    importance_weight: Slot = Field(
        default=Choice(name="one"), description="multiplies every term, without gradient"
    )
    advantage: Slot | None = Field(default=None, description="from rewards to advantages")
    grad_1: Slot | None = Field(default=None, description="the term that the advantage multiplies")
    grad_2: Slot = Field(default=Choice(name="none"), description="the term that is added to it")
    corrections: tuple[Choice, ...] = Field(
        default=(), description="factors for what sampler and trainer disagree on; multiplied"
    )
    old_policy: Literal["sampler", "reprefill", "proximal"] = Field(
        default="sampler",
        description="whose log-probs are pi_old: the sampler's own; those of its weights, computed "
        "again by the trainer; or those of the weights just before the batch's first update",
    )
    kl: KL = KL()
    entropy_coefficient: float = Field(
        default=0.0, description="of the policy's entropy per token, per nat; 0: no bonus"
    )
    overlong: Overlong = Overlong()
    mask_truncated: bool = Field(
        default=False,
        description="samples cut at max_new_tokens do not train; their rewards still count",
    )


class Reference(Section):
    """The frozen policy that KL is measured to; kept only where ``kl.coefficient`` is above 0."""

    path: PathText = Field(
        default="",
        description="parameters that the trainer can read; empty: what training started from, "
        "kept under <run_dir>/reference",
    )


class Objective(Algorithm):
    """A preset, and what is to differ from it."""

    preset: str = Field(default="grpo", description="the algorithm to start from")
    epochs: PositiveInt = Field(default=1, description="passes over one batch")
    mini_batches: PositiveInt = Field(
        default=1,
        description="updates per pass, each on as many rows; one RL step is epochs * mini_batches "
        "updates, and only its last weights are published",
    )
    reference: Reference = Reference()
    allow_uncorrected: bool = Field(
        default=False,
        description="train on samples older than one version without any correction for it, or "
        "several times on one batch without a ratio",
    )

    @property
    def updates_per_step(self) -> int:
        """Updates of the weights in one RL step."""
        return self.epochs * self.mini_batches
