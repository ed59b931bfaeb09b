"""Built-in slots of the objective, and the presets ``grpo`` and ``dapo``.

Notation: r = pi_theta / mu, with mu the sampler's distribution; A the advantage; len_i the tokens
of sample i; G the sequences. All formulas are to be maximised; ``rlax_plugin.objective`` holds the
sum they enter. JAX is imported when a slot is first traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from rlax_plugin import BuildContext, Choice, Extension, NoOptions, Section, hookimpl
from rlax_plugin.advantages import AdvantageSlot, per_group
from rlax_plugin.config import Overlong
from rlax_plugin.objective import Preset, TokenInputs

Positive = Annotated[float, Field(gt=0)]


def _without_options(part: Any) -> Extension:
    return Extension(NoOptions, lambda config, context: part)


def _options_are_the_part(config_class: type[Section]) -> Extension:
    return Extension(config_class, lambda config, context: config)


# Aggregations: mask_bt -> (weights_bt, total_weight). A sequence is a row with a trained token, so
# errored samples and padding rows do not count.


def sequence_mean(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/(G len_i): the mean over sequences of the mean over tokens; weight = sequences.

    GRPO, https://arxiv.org/abs/2402.03300.
    """
    return inputs.mask_bt / inputs.length_bt.clip(1), inputs.sequence_count()


def token_mean(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/sum_i len_i: the mean over all tokens of the step; weight = tokens.

    DAPO, https://arxiv.org/abs/2503.14476.
    """
    return inputs.mask_bt, inputs.mask_bt.sum()


class ConstantLength(Section):
    """agg = 1/(G L_max): token sums over a constant; weight = sequences.

    Dr. GRPO, https://arxiv.org/abs/2503.20783 (the reading of most implementations).
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="L_max; None takes rlax.rollouts.max_new_tokens"
    )


def _constant_length(
    config: ConstantLength, context: BuildContext
) -> Callable[[TokenInputs], tuple[Any, Any]]:
    max_tokens = config.max_tokens or context.section.rollouts.max_new_tokens

    def constant_length(inputs: TokenInputs) -> tuple[Any, Any]:
        return inputs.mask_bt / max_tokens, inputs.sequence_count()

    return constant_length


@hookimpl
def rlax_register_aggregation() -> dict[str, Extension]:
    return {
        "sequence_mean": _without_options(sequence_mean),
        "token_mean": _without_options(token_mean),
        "constant_length": Extension(ConstantLength, _constant_length),
    }


# Importance weights and corrections: inputs -> factor_bt, without gradient.


def one(inputs: TokenInputs) -> Any:
    """is = 1."""
    return inputs.mask_bt * 0.0 + 1.0


class TruncatedRatio(Section):
    """min(pi_theta/mu, cap) per token, without gradient; for a term such as ``log_prob``.

    As importance weight it is AIPO's (LlamaRL, https://arxiv.org/abs/2505.24034, cap 2 .. 10), as
    correction it is truncated importance sampling (TIS, cap 2): one formula. With one update per
    batch pi_theta is the policy just before the update, so that with ``log_prob`` it is also
    decoupled PPO (https://arxiv.org/abs/2505.24298) with a proximal policy from the trainer. The
    gradient of log pi stays where the ratio is cut. Aggregation weights are not re-normalised.
    """

    ratio: ClassVar[str] = "old/behaviour"
    corrects: ClassVar[bool] = True
    cap: Positive = Field(2.0, description="largest weight of a token")

    def __call__(self, inputs: TokenInputs) -> Any:
        return inputs.mismatch_bt.clip(max=self.cap)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        return {"truncated_fraction": inputs.mismatch_bt > self.cap}


@hookimpl
def rlax_register_importance_weight() -> dict[str, Extension]:
    return {"one": _without_options(one), "truncated": _options_are_the_part(TruncatedRatio)}


@hookimpl
def rlax_register_correction() -> dict[str, Extension]:
    return {"truncated_importance_sampling": _options_are_the_part(TruncatedRatio)}


# Gradient terms: inputs -> term_bt.


class ClippedRatio(Section):
    """M r, with M = 0 if (A > 0 and r > 1 + high) or (A < 0 and r < 1 - low), else 1.

    The gradient of A M r is that of PPO's min(r A, clip(r, 1 - low, 1 + high) A)
    (https://arxiv.org/abs/1707.06347); the value differs by a constant where M = 0. The old policy
    of r is the sampler, so do not combine it with a weight or correction that holds pi/mu.
    """

    ratio: ClassVar[str] = "policy/old"
    low: Annotated[float, Field(gt=0, le=1)] = Field(0.2, description="clip below 1 - low")
    high: Positive = Field(0.2, description="clip above 1 + high")

    def __call__(self, inputs: TokenInputs) -> Any:
        import jax.numpy as jnp

        clipped_high_bt, clipped_low_bt = self._clipped(inputs)
        keep_bt = ~(clipped_high_bt | clipped_low_bt)
        # Selected inside exp as well: an overflow that M removes must not make its gradient NaN.
        log_ratio_bt = inputs.logprobs_bt - inputs.old_logprobs_bt
        return jnp.where(keep_bt, jnp.exp(jnp.where(keep_bt, log_ratio_bt, 0.0)), 0.0)

    def metrics(self, inputs: TokenInputs) -> dict[str, Any]:
        clipped_high_bt, clipped_low_bt = self._clipped(inputs)
        return {"clip_fraction_high": clipped_high_bt, "clip_fraction_low": clipped_low_bt}

    def _clipped(self, inputs: TokenInputs) -> tuple[Any, Any]:
        ratio_bt = inputs.ratio_bt
        return (
            (inputs.advantages_bt > 0) & (ratio_bt > 1 + self.high),
            (inputs.advantages_bt < 0) & (ratio_bt < 1 - self.low),
        )


def log_prob(inputs: TokenInputs) -> Any:
    """log pi_theta: the policy gradient (REINFORCE), to be weighted by the other slots."""
    return inputs.logprobs_bt


def none(inputs: TokenInputs) -> Any:
    """0: no term."""
    return inputs.mask_bt * 0.0


@hookimpl
def rlax_register_gradient_term() -> dict[str, Extension]:
    return {
        "clipped_ratio": _options_are_the_part(ClippedRatio),
        "log_prob": _without_options(log_prob),
        "none": _without_options(none),
    }


# Advantages: (rewards_g float64, lengths_g) -> float64 [g]. Equal rewards give exactly 0: their
# floating-point mean may differ from them, and the quotient by a tiny std would be of order 1.


class GroupNormalised(Section):
    """A = (R - mean) / (std + epsilon) over the group, in float64; 0 if all R are equal.

    GRPO, https://arxiv.org/abs/2402.03300. Published code disagrees on ddof (mostly 1; 0 in
    open-instruct and cosmos-rl) and on epsilon (1e-9 .. 1e-4, mostly 1e-6). Without
    ``scale_by_std`` it is Dr. GRPO's R - mean, https://arxiv.org/abs/2503.20783.
    """

    ddof: Literal[0, 1] = Field(1, description="std divides by G - ddof")
    epsilon: Annotated[float, Field(ge=0)] = Field(1e-6, description="added to the std")
    scale_by_std: bool = Field(True, description="false leaves R - mean")


def _group_normalised(config: GroupNormalised, context: BuildContext) -> AdvantageSlot:
    def group_normalised(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        centred_g = rewards_g - rewards_g.mean()
        if not config.scale_by_std:
            return centred_g
        return centred_g / (rewards_g.std(ddof=config.ddof) + config.epsilon)

    return per_group(group_normalised)


def leave_one_out(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    """A_i = R_i - mean of the others; 0 if all R are equal. RLOO, https://arxiv.org/abs/2402.14740.

    Not divided by a std.
    """
    size = rewards_g.size
    return (rewards_g - rewards_g.mean()) * (size / (size - 1))


@hookimpl
def rlax_register_advantage() -> dict[str, Extension]:
    return {
        "group_normalised": Extension(GroupNormalised, _group_normalised),
        "leave_one_out": _without_options(per_group(leave_one_out)),
    }


# Presets.


def _grpo(config: NoOptions, context: BuildContext) -> Preset:
    """GRPO, https://arxiv.org/abs/2402.03300: 1/(G len) M r, 0.2/0.2, A = (R - mean)/std."""
    return Preset(
        aggregation=Choice(name="sequence_mean"),
        advantage=Choice(name="group_normalised"),
        grad_1=Choice(name="clipped_ratio", low=0.2, high=0.2),
    )


def _dapo(config: NoOptions, context: BuildContext) -> Preset:
    """DAPO, https://arxiv.org/abs/2503.14476: 1/sum len, M r with 0.2/0.28, overlong punishment."""
    return Preset(
        aggregation=Choice(name="token_mean"),
        advantage=Choice(name="group_normalised"),
        grad_1=Choice(name="clipped_ratio", low=0.2, high=0.28),
        overlong=Overlong(penalty=1.0),
    )


@hookimpl
def rlax_register_objective() -> dict[str, Extension]:
    return {"grpo": Extension(NoOptions, _grpo), "dapo": Extension(NoOptions, _dapo)}
