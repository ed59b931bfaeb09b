"""Gradient terms: inputs -> term_bt, with gradient. grad_1 is multiplied by A, grad_2 is added."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

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
    ``sequence_mean`` each sequence contributes 1/N of it.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Scheduled[Low] = Field(3e-4, description="sequence ratios below 1 - low are clipped")
    high: Scheduled[Positive] = Field(
        4e-4, description="sequence ratios above 1 + high are clipped"
    )

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        ratio_bt, (least, most) = self._ratio(inputs), self._bounds(inputs)
        return jnp.where(
            inputs.advantages_bt >= 0,
            jnp.minimum(ratio_bt, most),
            jnp.maximum(ratio_bt, least),
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
        return ratio_of(inputs.sequence_mean(inputs.log_ratio_bt))


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


def log_prob(inputs: TokenInputs) -> Any:
    """log pi_theta: multiplied by A, its gradient is the policy gradient (REINFORCE)."""
    return inputs.logprobs_bt


def none(inputs: TokenInputs) -> Any:
    """0: no term. This is the default of grad_2."""
    import jax.numpy as jnp

    return jnp.zeros_like(inputs.mask_bt)
