"""Rewards for completions with a right answer: texts, numbers, mathematics, formats, lengths.

Each module has one reward and its options; ``answers`` finds the answer in a completion. Heavy
libraries are imported when a reward is built, which happens in reward processes only.
"""

from __future__ import annotations

from rlax_plugin.api import Extension, hookimpl
from rlax_rewards.exact_match import ExactMatch, ExactMatchConfig
from rlax_rewards.length import Length, LengthConfig
from rlax_rewards.mathematics import (
    MathVerify,
    MathVerifyConfig,
    build_math_verify,
    check_math_verify,
)
from rlax_rewards.numeric import Numeric, NumericConfig
from rlax_rewards.pattern import Format, FormatConfig
from rlax_rewards.reasoning import (
    ReasoningGym,
    ReasoningGymConfig,
    build_reasoning_gym,
    check_reasoning_gym,
)


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {
        "exact_match": Extension(ExactMatchConfig, lambda config, context: ExactMatch(config)),
        "format": Extension(FormatConfig, lambda config, context: Format(config)),
        "length": Extension(LengthConfig, Length),
        "math_verify": Extension(
            MathVerifyConfig, build_math_verify, check_start=check_math_verify
        ),
        "numeric": Extension(NumericConfig, lambda config, context: Numeric(config)),
        "reasoning_gym": Extension(
            ReasoningGymConfig,
            build_reasoning_gym,
            check_start=check_reasoning_gym,
            needs_model=True,  # and the prompts of a task
        ),
    }
