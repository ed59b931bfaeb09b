"""The algorithm: a preset, its slots, and the keys that override it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.config.base import Choice, DefaultPart, PathText, PositiveInt, Section
from rlax_plugin.config.schedules import Scheduled, highest, value_at

# Options without a name belong to the part that the preset has in this slot.
Slot = Annotated[Choice, DefaultPart("")]


NonNegative = Annotated[float, Field(ge=0)]


class AdaptiveKL(Section):
    """A KL coefficient that follows the measured KL (https://arxiv.org/abs/1909.08593, sec. 2.2).

    After each step, beta is multiplied by 1 + n / horizon * clip(KL / target - 1, -0.2, 0.2), where
    n is the number of samples in the batch, and KL that of the sampler to the reference on them.
    """

    target: Annotated[float, Field(gt=0)] = Field(description="KL to be kept, in nats")
    horizon: PositiveInt = Field(
        default=10_000,
        description="number of samples over which beta changes by a factor of e^0.2, if the KL is "
        "far from its target",
    )
    per: Literal["sample", "token"] = Field(
        default="sample",
        description="sample: the KL of a sample is the sum over its tokens, as in the paper and in "
        "TRL; token: the mean over all tokens of the batch",
    )


class KL(Section):
    """Penalty for the KL divergence of the policy from the reference policy.

    With d = log pi - log pi_ref of a token, the estimators are k1 = d, k2 = d^2 / 2 and
    k3 = exp(-d) + d - 1 (J. Schulman, http://joschu.net/blog/kl-approx.html).
    """

    coefficient: Scheduled[NonNegative] = Field(
        default=0.0,
        description="beta, the coefficient of the KL penalty, per nat; 0: there is no penalty and "
        "no reference policy",
    )
    adaptive: AdaptiveKL | None = Field(
        default=None,
        description="control of the coefficient by the measured KL; coefficient is then its value "
        "in the first step. null: none",
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3",
        description="estimator K of the divergence, computed from the log-probs of the generated "
        "tokens",
    )
    placement: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: -beta K is added to grad_2; it is multiplied by the importance weight "
        "and the corrections. reward: -beta K is added to the reward of each token "
        "before advantages are computed; it is computed from the log-probs that came "
        "with the samples",
    )

    gradient: Literal["estimator", "k2", "score_function"] = Field(
        default="estimator",
        description="gradient of the KL in the loss. estimator: that of K; k2: that of k2, while "
        "the value is K; score_function: that of K plus K times the gradient of log pi",
    )
    times: Literal["ratio", "sequence_ratio", "behaviour_ratio"] | None = Field(
        default=None,
        description="factor of K in the loss, with its gradient: ratio: r; sequence_ratio: s; "
        "behaviour_ratio: pi_theta/mu; null: none",
    )
    weighted: bool = Field(
        default=True,
        description="false: the KL in the loss is not multiplied by the importance weight and the "
        "corrections, only by the aggregation",
    )
    aggregation: Choice | None = Field(
        default=None,
        description="aggregation of the KL in the loss alone; null: that of the objective",
    )
    clamp_log_ratio: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="d is clamped to this value, up and down, and has no gradient beyond it; "
        "null: not clamped",
    )
    clamp: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="K, with its factor, is clamped to this value, up and down, and has no "
        "gradient beyond it; null: not clamped",
    )

    def at(self, step: int) -> KL:
        """Returns the penalty of one RL step, whose coefficient is a number.

        That of an adaptive coefficient is its first value.
        """
        fixed = {"coefficient": value_at(self.coefficient, step), "adaptive": None}
        return self.model_copy(update=fixed)

    @property
    def penalises(self) -> bool:
        """True if the coefficient is above 0 in any step."""
        return highest(self.coefficient) > 0


class Overlong(Section):
    """Penalty for long samples: DAPO's soft overlong punishment.

    The following is subtracted from the reward of a sample (https://arxiv.org/abs/2503.14476, eq.
    13): penalty * clip((length - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1).
    """

    penalty: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="largest penalty, which a sample of max_tokens or more gets; 0: no penalty",
    )
    buffer_tokens: PositiveInt | None = Field(
        default=None,
        description="L_c: number of tokens before max_tokens over which the penalty grows from 0; "
        "null: a fifth of max_tokens",
    )
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="L_max: length from which the full penalty applies; null: "
        "rlax.rollouts.max_new_tokens, or all that an episode of several turns may sample",
    )


SLOTS = ("aggregation", "importance_weight", "advantage", "grad_1", "grad_2")
"""The fields of ``Algorithm`` that choose a part."""


class Algorithm(Section):
    """The definition of an algorithm: its slots, and the numbers that all slots share.

    The config's values override those of the preset. ``kl``, ``overlong`` and the options of a slot
    are merged key by key, unless the config names another part for the slot.
    """

    aggregation: Slot | None = Field(
        default=None,
        description="sum of the terms of all tokens and its divisor, such as the mean over tokens "
        "or over samples",
    )
    importance_weight: Slot = Field(
        default=Choice(name="one"),
        description="factor of every token's term, without gradient, such as an importance ratio",
    )
    advantage: Slot | None = Field(
        default=None, description="computation of advantages from rewards"
    )
    grad_1: Slot | None = Field(
        default=None, description="gradient term that is multiplied by the advantage"
    )
    grad_2: Slot = Field(
        default=Choice(name="none"), description="gradient term that is added without the advantage"
    )
    corrections: tuple[Choice, ...] = Field(
        default=(),
        description="factors per token that compensate for the difference between the policy that "
        "generated a token and the one being trained; several are multiplied",
    )
    old_policy: Literal["sampler", "reprefill", "proximal"] = Field(
        default="sampler",
        description="policy in the denominator of the ratio, pi_old. sampler: its log-probs are "
        "those that came with the samples; reprefill: the trainer computes them "
        "again, with the weights that generated the samples; proximal: the trainer "
        "computes them with the weights just before the batch's first update",
    )
    kl: KL = KL()
    entropy_coefficient: Scheduled[float] = Field(
        default=0.0,
        description="coefficient of the entropy of the policy, which is added to grad_2, per nat; "
        "0: no entropy bonus",
    )
    overlong: Overlong = Overlong()
    mask_truncated: bool = Field(
        default=False,
        description="true: exclude samples that were cut at max_new_tokens from training; their "
        "rewards still count in the advantages of their group",
    )


class Reference(Section):
    """The frozen reference policy of the KL term; it is kept only if the coefficient is not 0."""

    path: PathText = Field(
        default="",
        description="directory of the parameters, in a format that the trainer can read; empty: "
        "the parameters that training started from, which are stored under "
        "<run_dir>/reference",
    )


class Guidance(Section):
    """A right answer of the prompt source in place of a sample, where all samples of a group fail.

    Advantages are computed with it. Its term is A * pi / (pi + gamma), without clipping, importance
    weight, corrections, KL and entropy (LUFFY, https://arxiv.org/abs/2504.14945).
    """

    gamma: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="of the shaping pi / (pi + gamma): the smaller, the more the tokens count that "
        "the policy finds improbable",
    )


class Objective(Algorithm):
    """The algorithm: a preset, and keys that override its values.

    A key that the config does not set has the preset's value; the column "default" applies only if
    the preset does not set the key either. [objectives.md](objectives.md) explains the formulas.
    """

    preset: str = Field(
        default="grpo",
        description="name of a published algorithm whose values are used; rlax explain preset "
        "lists all presets",
    )
    epochs: PositiveInt = Field(default=1, description="number of passes over one batch")
    mini_batches: PositiveInt = Field(
        default=1,
        description="number of updates per pass; each uses an equal share of the rows. One RL "
        "step consists of epochs * mini_batches updates and then publishes the "
        "weights",
    )
    reference: Reference = Reference()
    guidance: Guidance | None = Field(
        default=None,
        description="a demonstration takes the place of a group's last sample if all fail, which "
        "the prompt source provides, as for rlax.trainer.warm_start without data; null: none",
    )
    allow_uncorrected: bool = Field(
        default=False,
        description="true: allow max_staleness above 1 although no importance weight or correction "
        "limits or masks the ratio to the policy that generated the sample, and several updates "
        "per batch without an importance ratio; both are errors otherwise",
    )

    max_gap: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="largest logprob_gap/p95, in nats, that is accepted: above it in three "
        "steps in a row, the run ends with an error, and can be resumed from its last checkpoint. "
        "Only steps with tokens of staleness 1 measure it; null: there is no limit",
    )

    @property
    def updates_per_step(self) -> int:
        """Updates of the weights in one RL step."""
        return self.epochs * self.mini_batches
