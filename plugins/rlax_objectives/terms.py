"""Gradient terms: inputs -> term_bt, with gradient. grad_1 is multiplied by A, grad_2 is added."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlax_plugin.api import Ratio, Scheduled, Section, TokenInputs, ratio_of

Positive = Annotated[float, Field(gt=0)]
Low = Annotated[float, Field(gt=0, le=1)]


class ClippedRatio(Section):
    """clip(r, 1 - low, 1 + high) if A > 0 and r > 1 + high, or A < 0 and r < 1 - low; else r.

    A clipped token has no gradient. Multiplied by A, the term has the value and the gradient of
    PPO's min(r A, clip(r, 1 - low, 1 + high) A) (https://arxiv.org/abs/1707.06347).

    With ``dual_clip`` = c, the term is c if A < 0 and r > c, so its product with A is at least c A
    (https://arxiv.org/abs/1912.09729). Without it, a token with A < 0 whose probability has grown
    much could make the update arbitrarily large.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Scheduled[Low] = Field(0.2, description="ratios below 1 - low are clipped")
    high: Scheduled[Positive] = Field(0.2, description="ratios above 1 + high are clipped")
    dual_clip: Scheduled[Annotated[float, Field(gt=1)]] | None = Field(
        None, description="c: tokens with A < 0 and r > c have no gradient; null: no dual clip"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        # Selected, as the gradient of a minimum is divided where both sides are equal.
        term_bt = inputs.ratio_bt
        for _, bound, beyond_bt in self._clipped(inputs):
            term_bt = jnp.where(beyond_bt, bound, term_bt)
        return term_bt

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {name: beyond_bt for name, _, beyond_bt in self._clipped(inputs)}

    def _clipped(self, inputs: TokenInputs) -> list[tuple[str, Any, Any]]:
        """Returns metric, bound and mask of the tokens beyond it; no token is counted twice."""
        ratio_bt, negative_bt = inputs.ratio_bt, inputs.advantages_bt < 0
        high, low = 1 + inputs.value(self.high), 1 - inputs.value(self.low)
        clipped = [
            ("clip_fraction_high", high, (inputs.advantages_bt > 0) & (ratio_bt > high)),
            ("clip_fraction_low", low, negative_bt & (ratio_bt < low)),
        ]
        if self.dual_clip is not None:
            most = inputs.value(self.dual_clip)
            clipped.append(("dual_clip_fraction", most, negative_bt & (ratio_bt > most)))
        return clipped


class SequenceRatio(Section):
    """min(s, 1 + high) if A >= 0, max(s, 1 - low) if A < 0, with s = (prod_t r_t)^(1/len).

    Multiplied by A, it is min(s A, clip(s, 1 - low, 1 + high) A): GSPO,
    https://arxiv.org/abs/2507.18071. Every token of a sequence has the same term, so with
    ``sequence_mean`` each sequence contributes 1/N of it. ``per: sequence`` makes s the product
    prod_t r_t: the clipped loss of TRL's RLOO, https://huggingface.co/docs/trl/rloo_trainer.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Scheduled[Low] = Field(3e-4, description="sequence ratios below 1 - low are clipped")
    high: Scheduled[Positive] = Field(
        4e-4, description="sequence ratios above 1 + high are clipped"
    )
    per: Literal["geometric", "sequence"] = Field(
        "geometric",
        description="s: geometric: the geometric mean of r over the sequence; sequence: its "
        "product",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        ratio_bt, (least, most) = self._ratio(inputs), self._bounds(inputs)
        return jnp.where(
            inputs.advantages_bt >= 0, jnp.minimum(ratio_bt, most), jnp.maximum(ratio_bt, least)
        )

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        ratio_bt, (least, most) = self._ratio(inputs), self._bounds(inputs)
        return {
            "clip_fraction_high": (inputs.advantages_bt > 0) & (ratio_bt > most),
            "clip_fraction_low": (inputs.advantages_bt < 0) & (ratio_bt < least),
        }

    def _bounds(self, inputs: TokenInputs) -> tuple[Any, Any]:
        return 1 - inputs.value(self.low), 1 + inputs.value(self.high)

    def _ratio(self, inputs: TokenInputs) -> Any:
        over = inputs.sequence_mean if self.per == "geometric" else inputs.sequence_sum
        return ratio_of(over(inputs.log_ratio_bt))


class SequenceRatioToken(SequenceRatio):
    """Like ``sequence_ratio``, with s_t = sg[s] pi_t / sg[pi_t]: GSPO-token.

    https://arxiv.org/abs/2507.18071, section 4.3. Use it if advantages differ between the tokens of
    a sequence; if they do not, it equals GSPO.
    """

    def _ratio(self, inputs: TokenInputs) -> Any:
        import jax
        import jax.numpy as jnp

        unit_bt = jnp.exp(inputs.logprobs_bt - jax.lax.stop_gradient(inputs.logprobs_bt))
        return jax.lax.stop_gradient(super()._ratio(inputs)) * unit_bt


class SigmoidGate(Section):
    """4/tau sigmoid(tau (r - 1)), with tau by the sign of A: SAPO.

    https://arxiv.org/abs/2511.20347. At r = 1 its derivative is 1 for every tau; far from 1 it goes
    to 0 smoothly, faster for A <= 0 by default. ``per: geometric`` gates the sequence's ratio s, as
    AReaL's option does.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    tau_positive: Scheduled[Positive] = Field(
        1.0, description="tau of tokens with A > 0; the larger, the narrower the gate"
    )
    tau_negative: Scheduled[Positive] = Field(1.05, description="tau of all other tokens")
    per: Literal["token", "geometric"] = Field(
        "token", description="token: the ratio of each token; geometric: s, that of its sequence"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax
        import jax.numpy as jnp

        positive, negative = inputs.value(self.tau_positive), inputs.value(self.tau_negative)
        tau_bt = jnp.where(inputs.advantages_bt > 0, positive, negative)
        log_ratio_bt = inputs.log_ratio_bt
        if self.per == "geometric":
            log_ratio_bt = inputs.sequence_mean(log_ratio_bt)
        return jax.nn.sigmoid(tau_bt * (ratio_of(log_ratio_bt) - 1)) * 4 / tau_bt


class ClippedGeometricMean(Section):
    """(prod_t c_t)^(1/len), c_t = clip(r_t) where A and r_t call for it: GMPO.

    c_t = min(r_t, e^high) if A > 0, max(r_t, e^-low) if A < 0, and 1 if A = 0. Clipped tokens have
    no gradient, and the others share that of the sequence. https://arxiv.org/abs/2507.20673; verl
    calls it ``geo_mean``.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Scheduled[Positive] = Field(
        0.4, description="nats: ratios below e^-low are raised to it if A < 0"
    )
    high: Scheduled[Positive] = Field(
        0.4, description="nats: ratios above e^high are reduced to it if A > 0"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        log_ratio_bt = jnp.where(inputs.advantages_bt == 0, 0, inputs.log_ratio_bt)
        for _, bound, beyond_bt in self._clipped(inputs):
            log_ratio_bt = jnp.where(beyond_bt, bound, log_ratio_bt)
        return ratio_of(inputs.sequence_mean(log_ratio_bt))

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {name: beyond_bt for name, _, beyond_bt in self._clipped(inputs)}

    def _clipped(self, inputs: TokenInputs) -> list[tuple[str, Any, Any]]:
        least, most = -inputs.value(self.low), inputs.value(self.high)
        log_bt, a_bt = inputs.log_ratio_bt, inputs.advantages_bt
        return [
            ("clip_fraction_high", most, (a_bt > 0) & (log_bt > most)),
            ("clip_fraction_low", least, (a_bt < 0) & (log_bt < least)),
        ]


class TrustRegion(Section):
    """r, without the tokens whose probability has left a trust region around pi_old: DPPO.

    A token is masked if p = pi_theta and q = pi_old of the token differ by more than a bound, in
    the direction in which A pushes it: p - q > high if A > 0, q - p > low if not
    (``divergence: tv``), or, with ``divergence: kl``, if the KL of (q, 1 - q) to (p, 1 - p) exceeds
    the bound. https://arxiv.org/abs/2602.04879; the default is the form of prime-rl. verl's has
    ``value: log_prob`` and a ``cap``: min(r, cap) without gradient times log pi.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    divergence: Literal["tv", "kl"] = Field(
        "tv", description="tv: |p - q|; kl: the KL of the binary distributions, in nats"
    )
    low: Scheduled[Positive] = Field(0.2, description="bound of tokens with A <= 0")
    high: Scheduled[Positive] = Field(0.2, description="bound of tokens with A > 0")
    side: Literal["advantage", "both"] = Field(
        "advantage",
        description="advantage: only changes in the direction in which A pushes; both: all",
    )
    cap: Scheduled[Positive] | None = Field(
        None, description="largest r; tokens beyond keep the gradient cap grad log pi; null: none"
    )
    value: Literal["ratio", "log_prob"] = Field(
        "ratio",
        description="value of a token, with the same gradient: ratio: r; log_prob: r log pi",
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax
        import jax.numpy as jnp

        stop = jax.lax.stop_gradient
        ratio_bt = inputs.ratio_bt
        if self.cap is not None:
            ratio_bt = jnp.minimum(ratio_bt, inputs.value(self.cap))
        weight_bt = stop(jnp.where(self._left(inputs), 0.0, ratio_bt))
        if self.value == "log_prob":
            return weight_bt * inputs.logprobs_bt
        return weight_bt * jnp.exp(inputs.logprobs_bt - stop(inputs.logprobs_bt))

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {"trust_region_masked_fraction": self._left(inputs)}

    def _left(self, inputs: TokenInputs) -> Any:
        """Returns the mask of tokens that have left the region."""
        import jax.numpy as jnp

        p_bt, q_bt = jnp.exp(inputs.logprobs_bt), jnp.exp(inputs.old_logprobs_bt)
        up_bt = inputs.advantages_bt > 0
        bound_bt = jnp.where(up_bt, inputs.value(self.high), inputs.value(self.low))
        change_bt = p_bt - q_bt
        moved_bt = jnp.abs(change_bt)
        if self.divergence == "kl":
            rest_bt = jnp.log((1 - q_bt + 1e-8) / (1 - p_bt + 1e-8))
            moved_bt = -q_bt * inputs.log_ratio_bt + (1 - q_bt) * rest_bt
        if self.side == "both":
            return moved_bt > bound_bt
        return (moved_bt > bound_bt) & jnp.where(up_bt, change_bt > 0, change_bt < 0)


class LogRatioPenalty(Section):
    """-coefficient (log r)^2, which keeps the policy near pi_old, for the slot grad_2.

    prime-rl adds it to DPPO, with 1e-3 and pi_old = mu, after https://arxiv.org/abs/2602.02276;
    verl's DRO has half of its ``dro_beta`` here.
    """

    coefficient: Scheduled[Positive] = Field(1e-3, description="factor of (log r)^2, per nat^2")

    def __call__(self, inputs: TokenInputs) -> Any:
        return -inputs.value(self.coefficient) * inputs.log_ratio_bt**2


def log_prob(inputs: TokenInputs) -> Any:
    """log pi_theta: multiplied by A, its gradient is the policy gradient (REINFORCE)."""
    return inputs.logprobs_bt


def none(inputs: TokenInputs) -> Any:
    """0: no term. This is the default of grad_2."""
    import jax.numpy as jnp

    return jnp.zeros_like(inputs.mask_bt)
