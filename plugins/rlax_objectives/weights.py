"""Importance weights and corrections: inputs -> factor_bt, without gradient.

``m`` is ``inputs.mismatch_bt``, pi_old / mu with the trainer's pi_old. With ``old_policy:
sampler`` no pi_old is computed, and m is pi_theta / mu at each update. A correction uses m only, so
it composes with every term; ``ratio`` names the ratio that a factor multiplies by, and ``resolve``
rejects two that make no sense together. Aggregation weights are not re-normalised for tokens that a
factor removes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlax_plugin.api import (
    ConfigError,
    Ratio,
    Scheduled,
    Section,
    TokenInputs,
    first_above,
    ratio_of,
)

Positive = Annotated[float, Field(gt=0)]
Per = Literal["token", "sequence"]


def _summed(inputs: TokenInputs, log_ratio_bt: Any, per: Per) -> Any:
    """Returns the log ratio of each token, or of its whole sequence, as a sum of logarithms."""
    return inputs.sequence_sum(log_ratio_bt) if per == "sequence" else log_ratio_bt


def one(inputs: TokenInputs) -> Any:
    """is = 1: no importance weight."""
    import jax.numpy as jnp

    return jnp.ones_like(inputs.mask_bt)


class Truncated(Section):
    """is = min(pi_theta/mu, rho) per token: AIPO (LlamaRL, https://arxiv.org/abs/2505.24034).

    With grad_1 = ``log_prob``, a token whose ratio exceeds rho keeps the gradient
    rho A grad log pi.
    """

    ratio: ClassVar[Ratio] = "policy/behaviour"
    corrects: ClassVar[bool] = True
    cap: Scheduled[Positive] = Field(
        2.0, description="rho: larger ratios are reduced to this value; the paper uses 2 to 10"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        return self._ratio(inputs).clip(max=inputs.value(self.cap))

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {"truncated_fraction": self._ratio(inputs) > inputs.value(self.cap)}

    def _ratio(self, inputs: TokenInputs) -> Any:
        return ratio_of(inputs.logprobs_bt - inputs.behaviour_logprobs_bt)


class TruncatedImportanceSampling(Section):
    """min(m, C) per token, with m = pi_old/mu: TIS, https://fengyao.notion.site/off-policy-rl.

    With ``above_cap: mask`` the factor of tokens with m > C is 0 instead of C. With ``old_policy:
    sampler``, m is pi_theta/mu, so the factor equals AIPO's importance weight ``truncated``.
    """

    ratio: ClassVar[Ratio] = "old/behaviour"
    corrects: ClassVar[bool] = True
    prefix: ClassVar[str] = "tis"
    cap: Scheduled[Positive] = Field(
        2.0, description="C: the factor of a token is at most this value"
    )
    above_cap: Literal["truncate", "mask"] = Field(
        "truncate", description="factor of tokens with m above C: truncate: C; mask: 0"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        cap = inputs.value(self.cap)
        above = cap if self.above_cap == "truncate" else 0.0
        return jnp.where(inputs.mismatch_bt > cap, above, inputs.mismatch_bt)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        what = "truncated" if self.above_cap == "truncate" else "masked"
        return {f"{self.prefix}_{what}_fraction": inputs.mismatch_bt > inputs.value(self.cap)}


class Decoupled(TruncatedImportanceSampling):
    """is = min(pi_prox/mu, C): decoupled PPO, AReaL (https://arxiv.org/abs/2505.24298).

    It computes the same factor as ``truncated_importance_sampling``, with AReaL's cap, in the slot
    ``importance_weight``. It is meant for ``old_policy: proximal``: then pi_prox is pi_old, and
    grad_1 is the clipped ratio pi_theta/pi_prox.
    """

    prefix: ClassVar[str] = "decoupled"
    cap: Scheduled[Positive] = Field(
        5.0, description="C: the factor of a token is at most this value"
    )


class PolicyRatio(Section):
    """is = sg[r] per token, or prod_t r_t over the sequence: REINFORCE on samples of pi_old.

    The ratio is not bounded. With ``per: sequence`` its variance grows with the length of the
    sequence.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    per: Per = Field(
        "token",
        description="token: the ratio of each token; sequence: the product of the ratios of its "
        "sequence",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        return ratio_of(_summed(inputs, inputs.log_ratio_bt, self.per))


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

    https://arxiv.org/abs/2503.14286. ``per: token`` truncates each token's ratio, as ROLL does.
    """

    ratio: ClassVar[Ratio] = "policy/behaviour"
    corrects: ClassVar[bool] = True
    per: Per = Field(
        "sequence",
        description="sequence: the product of the ratios of the sequence; token: the ratio of "
        "each token",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        return jnp.where(inputs.advantages_bt < 0, ratio_of(self._log_ratio(inputs)).clip(max=1), 1)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        cut_bt = (inputs.advantages_bt < 0) & (self._log_ratio(inputs) > 0)
        return {"topr_truncated_fraction": cut_bt}

    def _log_ratio(self, inputs: TokenInputs) -> Any:
        return _summed(inputs, inputs.logprobs_bt - inputs.behaviour_logprobs_bt, self.per)


class _Mask(Section):
    """A factor that is 1 on tokens to keep, and 0 elsewhere."""

    corrects: ClassVar[bool] = True
    prefix: ClassVar[str]

    def keeps(self, inputs: TokenInputs) -> Any:
        raise NotImplementedError

    def __call__(self, inputs: TokenInputs) -> Any:
        return self.keeps(inputs).astype(inputs.mask_bt.dtype)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {f"{self.prefix}_masked_fraction": ~self.keeps(inputs)}


class _Band(_Mask):
    low: Scheduled[Annotated[float, Field(ge=0)]]
    high: Scheduled[Positive]

    @model_validator(mode="after")
    def _ordered(self) -> _Band:
        if (step := first_above(self.low, self.high)) is not None:
            when = f", and does at step {step}" if step > 1 else ""
            raise ConfigError("low", self.low, f"must not exceed high = {self.high}{when}")
        return self

    def inside(self, ratio_bt: Any, inputs: TokenInputs) -> Any:
        """Returns the mask of ratios between both bounds."""
        return (ratio_bt >= inputs.value(self.low)) & (ratio_bt <= inputs.value(self.high))


class IcePop(_Band):
    """1 if low <= m <= high, else 0, per token: the mask of IcePop (Ring-1T).

    https://arxiv.org/abs/2510.18855. Alone it is only a mask: the paper and verl also multiply the
    remaining tokens by m. To do so, add ``truncated_importance_sampling`` with ``cap: 5``.
    """

    prefix: ClassVar[str] = "icepop"
    low: Scheduled[Annotated[float, Field(ge=0)]] = Field(
        0.5, description="tokens with m = pi_old / mu below this value are masked"
    )
    high: Scheduled[Positive] = Field(
        5.0,
        description="tokens with m = pi_old / mu above this value are masked; kept ones are not "
        "multiplied by m, unlike in verl",
    )

    def keeps(self, inputs: TokenInputs) -> Any:
        return self.inside(inputs.mismatch_bt, inputs)


class SequenceMask(_Band):
    """1 if low <= (prod_t m_t)^(1/len) <= high, else 0, for all tokens of a sequence.

    Published bounds range from (0.99, 1.01) to (0.1, 10). Good bounds depend on the model and on
    the rollout engine; check the metric ``objective/sequence_mask_masked_fraction``.
    """

    prefix: ClassVar[str] = "sequence_mask"
    low: Scheduled[Annotated[float, Field(ge=0)]] = Field(
        0.5,
        description="sequences are masked if the geometric mean of m = pi_old / mu is below this",
    )
    high: Scheduled[Positive] = Field(
        2.0,
        description="sequences are masked if the geometric mean of m = pi_old / mu is above this",
    )

    def keeps(self, inputs: TokenInputs) -> Any:
        log_m_bt = inputs.trainer_logprobs_bt - inputs.behaviour_logprobs_bt
        return self.inside(ratio_of(inputs.sequence_mean(log_m_bt)), inputs)


class Veto(_Mask):
    """0 for all tokens of a sequence that contains a token with m < threshold, else 1.

    It masks sequences that contain a token to which the trainer gives almost no probability. It
    does not limit large ratios, so it is not sufficient as the correction that samples of older
    weights require.
    """

    corrects: ClassVar[bool] = False
    prefix: ClassVar[str] = "veto"
    threshold: Scheduled[Positive] = Field(
        1e-4,
        description="sequences are masked if they contain a token with m = pi_old / mu below this",
    )

    def keeps(self, inputs: TokenInputs) -> Any:
        below_bt = inputs.mismatch_bt < inputs.value(self.threshold)
        return inputs.sequence_sum(below_bt.astype(inputs.mask_bt.dtype)) == 0
