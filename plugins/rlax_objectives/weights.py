"""Importance weights: inputs -> factor_bt, without gradient.

``ratio`` names the ratio that a factor multiplies by; ``resolve`` rejects two that make no sense
together.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlax_objectives.corrections import Bounded, Per, combined
from rlax_plugin.api import Ratio, Scheduled, Section, TokenInputs, ratio_of

Positive = Annotated[float, Field(gt=0)]


def one(inputs: TokenInputs) -> Any:
    """is = 1: no importance weight."""
    import jax.numpy as jnp

    return jnp.ones_like(inputs.mask_bt)


class Truncated(Bounded):
    """is = min(pi_theta/mu, rho) per token: AIPO (LlamaRL, https://arxiv.org/abs/2505.24034).

    With grad_1 = ``log_prob``, a token whose ratio exceeds rho keeps the gradient
    rho A grad log pi. ``per: sequence`` bounds the product over the sequence, as verl's REINFORCE
    with ``rollout_is: sequence`` does.
    """

    ratio: ClassVar[Ratio] = "policy/behaviour"
    prefix: ClassVar[str] = ""
    cap: Scheduled[Positive] | None = Field(
        2.0,
        description="rho: larger ratios are reduced to this value; the paper uses 2 to 10; null: "
        "no upper bound",
    )

    def log_ratio(self, inputs: TokenInputs) -> Any:
        return inputs.logprobs_bt - inputs.behaviour_logprobs_bt


class PolicyRatio(Section):
    """is = sg[r] per token, or prod_t r_t over the sequence: REINFORCE on samples of pi_old.

    The ratio is not bounded. With ``per: sequence`` its variance grows with the length of the
    sequence.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    per: Per = Field(
        "token",
        description="token: the ratio of each token; sequence: the product of the ratios of its "
        "sequence; geometric: their geometric mean",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        return ratio_of(combined(inputs, inputs.log_ratio_bt, self.per))


class Clipped(Section):
    """is = clip(r, 1 - low, 1 + high) per token: CISPO (MiniMax-M1).

    https://arxiv.org/abs/2506.13585. By default there is no lower bound, as in the paper's
    experiments. With grad_1 = ``log_prob`` every token keeps a gradient.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    corrects: ClassVar[bool] = True
    low: Scheduled[Annotated[float, Field(gt=0, le=1)]] | None = Field(
        None, description="ratios below 1 - low are raised to 1 - low; null: no lower bound"
    )
    high: Scheduled[Positive] = Field(
        4.0, description="ratios above 1 + high are reduced to 1 + high"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        return inputs.ratio_bt.clip(self._least(inputs), 1 + inputs.value(self.high))

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {
            "weight_clip_fraction_high": inputs.ratio_bt > 1 + inputs.value(self.high),
            "weight_clip_fraction_low": inputs.ratio_bt < self._least(inputs),
        }

    def _least(self, inputs: TokenInputs) -> Any:
        return 0.0 if self.low is None else 1 - inputs.value(self.low)


class Topr(Section):
    """is = 1 where A >= 0, else clip(prod_t pi_theta/mu, 0, 1): TOPR.

    https://arxiv.org/abs/2503.14286. ``per: token`` truncates each token's ratio, as ROLL does,
    which also separates the two cases by the sign of the reward: ``split: reward``.
    """

    ratio: ClassVar[Ratio] = "policy/behaviour"
    corrects: ClassVar[bool] = True
    per: Per = Field(
        "sequence",
        description="sequence: the product of the ratios of the sequence; token: the ratio of "
        "each token; geometric: the geometric mean of those of the sequence",
    )
    split: Literal["advantage", "reward"] = Field(
        "advantage",
        description="tokens whose ratio is truncated: advantage: those with A < 0; reward: those "
        "of samples whose reward is 0 or less",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        ratio_bt = ratio_of(self._log_ratio(inputs))
        return jnp.where(self._tapers(inputs), ratio_bt.clip(max=1), 1)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        cut_bt = self._tapers(inputs) & (self._log_ratio(inputs) > 0)
        return {"topr_truncated_fraction": cut_bt}

    def _tapers(self, inputs: TokenInputs) -> Any:
        if self.split == "reward":
            return inputs.reward_bt <= 0
        return inputs.advantages_bt < 0

    def _log_ratio(self, inputs: TokenInputs) -> Any:
        return combined(inputs, inputs.logprobs_bt - inputs.behaviour_logprobs_bt, self.per)
