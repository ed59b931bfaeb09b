"""Gradient terms: inputs -> term_bt, with gradient. grad_1 is multiplied by A, grad_2 is added."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from rlax_plugin.api import Ratio, Section, TokenInputs, ratio_of

Positive = Annotated[float, Field(gt=0)]
Low = Annotated[float, Field(gt=0, le=1)]


class ClippedRatio(Section):
    """clip(r, 1 - low, 1 + high) where clipping takes the gradient away, else r.

    It does where A > 0 and r > 1 + high, or A < 0 and r < 1 - low. Times A it is PPO's
    min(r A, clip(r, 1 - low, 1 + high) A), value and gradient (https://arxiv.org/abs/1707.06347).
    With ``dual_clip`` = c it is also c where A < 0 and r > c, which gives max(that minimum, c A):
    a token that has become much more probable cannot blow the step up
    (https://arxiv.org/abs/1912.09729).
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Low = Field(0.2, description="clip below 1 - low")
    high: Positive = Field(0.2, description="clip above 1 + high")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description="c: no gradient where A < 0 and r > c; null: off"
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

    def _clipped(self, inputs: TokenInputs) -> list[tuple[str, float, Any]]:
        """Name of the metric, the bound, and which tokens are beyond it; no token is twice."""
        ratio_bt, negative_bt = inputs.ratio_bt, inputs.advantages_bt < 0
        high, low = 1 + self.high, 1 - self.low
        clipped = [
            ("clip_fraction_high", high, (inputs.advantages_bt > 0) & (ratio_bt > high)),
            ("clip_fraction_low", low, negative_bt & (ratio_bt < low)),
        ]
        if self.dual_clip is not None:
            beyond_bt = negative_bt & (ratio_bt > self.dual_clip)
            clipped.append(("dual_clip_fraction", self.dual_clip, beyond_bt))
        return clipped


class SequenceRatio(Section):
    """min(s, 1 + high) where A >= 0, max(s, 1 - low) where A < 0, with s = (prod_t r_t)^(1/len).

    Times A it is S(A, s) = min(s A, clip(s, 1 - low, 1 + high) A): GSPO,
    https://arxiv.org/abs/2507.18071. Every token of a sequence holds the sequence's term, so that
    ``sequence_mean`` gives 1/G per sequence.
    """

    ratio: ClassVar[Ratio] = "policy/old"
    low: Low = Field(3e-4, description="clip below 1 - low")
    high: Positive = Field(4e-4, description="clip above 1 + high")

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        ratio_bt = self._ratio(inputs)
        return jnp.where(
            inputs.advantages_bt >= 0,
            jnp.minimum(ratio_bt, 1 + self.high),
            jnp.maximum(ratio_bt, 1 - self.low),
        )

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        ratio_bt = self._ratio(inputs)
        return {
            "clip_fraction_high": (inputs.advantages_bt > 0) & (ratio_bt > 1 + self.high),
            "clip_fraction_low": (inputs.advantages_bt < 0) & (ratio_bt < 1 - self.low),
        }

    def _ratio(self, inputs: TokenInputs) -> Any:
        return ratio_of(inputs.sequence_mean(inputs.log_ratio_bt))


class SequenceRatioToken(SequenceRatio):
    """As ``sequence_ratio`` with s_t = sg[s] pi_t / sg[pi_t]: GSPO-token.

    https://arxiv.org/abs/2507.18071, section 4.3. For advantages per token; equal to GSPO while A
    is the same on all tokens of a sequence.
    """

    def _ratio(self, inputs: TokenInputs) -> Any:
        import jax
        import jax.numpy as jnp

        unit_bt = jnp.exp(inputs.logprobs_bt - jax.lax.stop_gradient(inputs.logprobs_bt))
        return jax.lax.stop_gradient(super()._ratio(inputs)) * unit_bt


def log_prob(inputs: TokenInputs) -> Any:
    """log pi_theta: the policy gradient (REINFORCE), to be weighted by the other slots."""
    return inputs.logprobs_bt


def none(inputs: TokenInputs) -> Any:
    """0: no term."""
    import jax.numpy as jnp

    return jnp.zeros_like(inputs.mask_bt)
