"""Corrections: inputs -> factor_bt, without gradient, that depends on m.

``m`` is ``inputs.mismatch_bt``, pi_old / mu with the trainer's pi_old. With ``old_policy:
sampler`` no pi_old is computed, and m is pi_theta / mu at each update. A correction uses m only, so
it composes with every term. Aggregation weights are not re-normalised for tokens that a factor
removes, unless the aggregation has ``count: kept``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlax_plugin.api import (
    ConfigError,
    Ratio,
    Scheduled,
    Section,
    TokenInputs,
    first_above,
    kl_estimate,
    ratio_of,
)

Positive = Annotated[float, Field(gt=0)]
Per = Literal["token", "sequence", "geometric"]


def combined(inputs: TokenInputs, log_ratio_bt: Any, per: Per) -> Any:
    """Returns the log ratio of each token, or of its sequence: of the product or of the mean."""
    if per == "sequence":
        return inputs.sequence_sum(log_ratio_bt)
    return inputs.sequence_mean(log_ratio_bt) if per == "geometric" else log_ratio_bt


class Bounded(Section):
    """A ratio between two bounds, of each token or of its sequence."""

    prefix: ClassVar[str]  # of its metrics
    cap: Scheduled[Positive] | None
    above_cap: Literal["truncate", "mask"] = Field(
        "truncate", description="factor of a ratio above the cap: truncate: the cap; mask: 0"
    )
    floor: Scheduled[Positive] | None = Field(
        None, description="lower bound of the ratio; null: no lower bound"
    )
    below_floor: Literal["truncate", "mask"] = Field(
        "truncate", description="factor of a ratio below the floor: truncate: the floor; mask: 0"
    )
    per: Per = Field(
        "token",
        description="token: the ratio of each token; sequence: the product of the ratios of its "
        "sequence; geometric: their geometric mean",
    )

    @property
    def corrects(self) -> bool:
        return self.cap is not None

    def check_together(self) -> None:
        if self.floor is None or self.cap is None:
            return
        if (step := first_above(self.floor, self.cap)) is not None:
            when = f", and does at step {step}" if step > 1 else ""
            raise ConfigError("floor", self.floor, f"must not exceed cap = {self.cap}{when}")

    def log_ratio(self, inputs: TokenInputs) -> Any:
        """Returns the log ratio of each token."""
        raise NotImplementedError

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        ratio_bt = self._ratio(inputs)
        found_bt = ratio_bt
        for _, bound, outside_bt, rule in self._outside(inputs, ratio_bt):
            value = bound if rule == "truncate" else 0.0
            found_bt = jnp.where(outside_bt, value, found_bt)
        return found_bt

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        found = self._outside(inputs, self._ratio(inputs))
        return {f"{self.prefix}{name}_fraction": outside_bt for name, _, outside_bt, _ in found}

    def _ratio(self, inputs: TokenInputs) -> Any:
        return ratio_of(combined(inputs, self.log_ratio(inputs), self.per))

    def _outside(self, inputs: TokenInputs, ratio_bt: Any) -> list[tuple[str, Any, Any, str]]:
        """Returns metric, bound, mask of the ratios beyond it and what becomes of them."""
        found: list[tuple[str, Any, Any, str]] = []
        if self.cap is not None:
            cap, rule = inputs.value(self.cap), self.above_cap
            name = "truncated" if rule == "truncate" else "masked"
            found.append((name, cap, ratio_bt > cap, rule))
        if self.floor is not None:
            floor, rule = inputs.value(self.floor), self.below_floor
            name = "raised" if rule == "truncate" else "low_masked"
            found.append((name, floor, ratio_bt < floor, rule))
        return found


class TruncatedImportanceSampling(Bounded):
    """min(m, C) per token, with m = pi_old/mu: TIS, https://fengyao.notion.site/off-policy-rl.

    With ``above_cap: mask`` the factor of tokens with m > C is 0 instead of C. With ``old_policy:
    sampler``, m is pi_theta/mu, so the factor equals AIPO's importance weight ``truncated``. With
    ``floor`` it is bounded on both sides, as in OpenRLHF. ``per: sequence`` bounds the product of m
    over the sequence, which is then the factor of all of its tokens, as in TRL, verl and SkyRL;
    ``per: geometric`` the geometric mean, as in AReaL and open-instruct.
    """

    ratio: ClassVar[Ratio] = "old/behaviour"
    prefix: ClassVar[str] = "tis_"
    cap: Scheduled[Positive] | None = Field(
        2.0, description="C: the factor is at most this value; null: no upper bound"
    )

    def log_ratio(self, inputs: TokenInputs) -> Any:
        return inputs.trainer_logprobs_bt - inputs.behaviour_logprobs_bt


class Decoupled(TruncatedImportanceSampling):
    """is = min(pi_prox/mu, C): decoupled PPO, AReaL (https://arxiv.org/abs/2505.24298).

    It computes the same factor as ``truncated_importance_sampling``, with AReaL's cap, in the slot
    ``importance_weight``. It is meant for ``old_policy: proximal``: then pi_prox is pi_old, and
    grad_1 is the clipped ratio pi_theta/pi_prox.
    """

    prefix: ClassVar[str] = "decoupled_"
    cap: Scheduled[Positive] | None = Field(
        5.0, description="C: the factor is at most this value; null: no upper bound"
    )


class _Mask(Section):
    """A factor that is 1 on tokens to keep, and 0 elsewhere."""

    corrects: ClassVar[bool] = True
    rejects: ClassVar[bool] = True
    prefix: ClassVar[str]

    def keeps(self, inputs: TokenInputs) -> Any:
        raise NotImplementedError

    def __call__(self, inputs: TokenInputs) -> Any:
        return self.keeps(inputs).astype(inputs.mask_bt.dtype)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {f"{self.prefix}_masked_fraction": ~self.keeps(inputs)}


class _Band(_Mask):
    low: Scheduled[Annotated[float, Field(ge=0)]] | None
    high: Scheduled[Positive] | None

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The lower and the upper bound that apply; None: there is none."""
        return self.low, self.high

    def check_together(self) -> None:
        low, high = self.bounds
        if low is None or high is None:
            return
        if (step := first_above(low, high)) is not None:
            when = f", and does at step {step}" if step > 1 else ""
            raise ConfigError("low", low, f"must not exceed high = {high}{when}")

    def inside(self, ratio_bt: Any, inputs: TokenInputs) -> Any:
        """Returns the mask of ratios between both bounds."""
        low, high = self.bounds
        inside_bt = inputs.mask_bt >= 0  # everywhere
        if low is not None:
            inside_bt &= ratio_bt >= inputs.value(low)
        return inside_bt if high is None else inside_bt & (ratio_bt <= inputs.value(high))


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
    the rollout engine; check the metric ``objective/sequence_mask_masked_fraction``. ``over: sum``
    compares the product prod_t m_t, as TRL and SkyRL do, and ``over: max`` the largest m. ``of``
    compares an estimate of the KL instead, which has an upper bound only. ``advantages: negative``
    is the mask of DeepSeek-V3.2, https://arxiv.org/abs/2512.02556.
    """

    prefix: ClassVar[str] = "sequence_mask"
    low: Scheduled[Annotated[float, Field(ge=0)]] | None = Field(
        0.5,
        description="sequences are masked if the geometric mean of m = pi_old / mu is below this; "
        "null: no lower bound",
    )
    high: Scheduled[Positive] | None = Field(
        2.0,
        description="sequences are masked if the geometric mean of m = pi_old / mu is above this; "
        "null: no upper bound",
    )
    of: Literal["ratio", "k2", "k3"] = Field(
        "ratio",
        description="what is compared with the bounds: ratio: m; k2, k3: (log m)^2 / 2 and "
        "m - 1 - log m, with high alone",
    )
    over: Literal["mean", "sum", "max"] = Field(
        "mean",
        description="mean: the geometric mean of m over the sequence, or the mean of k2 or k3; "
        "sum: the product of m, or the sum; max: the largest",
    )
    advantages: Literal["all", "negative"] = Field(
        "all", description="negative: only tokens with A < 0 are masked"
    )

    @property
    def corrects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.high is not None and self.advantages == "all"

    @property
    def bounds(self) -> tuple[Any, Any]:
        return (self.low if self.of == "ratio" else None), self.high

    def check_together(self) -> None:
        if self.of != "ratio" and "low" in self.model_fields_set and self.low is not None:
            raise ConfigError("low", self.low, f"has no effect with of: {self.of}: set high alone")

    def keeps(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        log_m_bt = inputs.trainer_logprobs_bt - inputs.behaviour_logprobs_bt
        x_bt = log_m_bt if self.of == "ratio" else kl_estimate(self.of, -log_m_bt, jnp)
        found_bt = getattr(inputs, f"sequence_{self.over}")(x_bt)
        kept_bt = self.inside(ratio_of(found_bt) if self.of == "ratio" else found_bt, inputs)
        return kept_bt if self.advantages == "all" else kept_bt | ~(inputs.advantages_bt < 0)


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
