"""Rewards for completions with a right answer: texts, numbers, mathematics, formats, lengths.

Each module has one reward and its options; ``answers`` finds the answer in a completion. Heavy
libraries are imported when a reward is built, which happens in reward processes only.
"""

from __future__ import annotations

from rlax_plugin.api import Extension, hookimpl
from rlax_rewards.exact_match import ExactMatch, ExactMatchConfig
from rlax_rewards.length import LengthConfig, build_length
from rlax_rewards.mathematics import MathVerify, MathVerifyConfig
from rlax_rewards.numeric import Numeric, NumericConfig
from rlax_rewards.pattern import Format, FormatConfig
from rlax_rewards.reasoning import ReasoningGym, ReasoningGymConfig, check_installed

__all__ = [
    "ExactMatch",
    "ExactMatchConfig",
    "Format",
    "FormatConfig",
    "LengthConfig",
    "MathVerify",
    "MathVerifyConfig",
    "Numeric",
    "NumericConfig",
    "ReasoningGym",
    "ReasoningGymConfig",
]


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {
        "exact_match": Extension(ExactMatchConfig, lambda config, context: ExactMatch(config)),
        "format": Extension(FormatConfig, lambda config, context: Format(config)),
        "length": Extension(LengthConfig, build_length),
        "math_verify": Extension(MathVerifyConfig, lambda config, context: MathVerify(config)),
        "numeric": Extension(NumericConfig, lambda config, context: Numeric(config)),
        "reasoning_gym": Extension(
            ReasoningGymConfig,
            lambda config, context: ReasoningGym(config),
            check_start=check_installed,
            needs_model=True,  # and the prompts of a task
        ),
    }
