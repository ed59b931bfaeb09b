"""Task plug-in: sums (or products) of two numbers, with an exact-match reward.

Importing it is cheap, because the reward processes do: tensorflow-datasets is imported only when
prompts are read.
"""

from __future__ import annotations

from rlax_arithmetic.reward import ExactAnswer
from rlax_arithmetic.source import ArithmeticConfig, ArithmeticSource, check_start
from rlax_plugin.api import BuildContext, Extension, NoOptions, hookimpl

__all__ = ["ArithmeticConfig", "ArithmeticSource", "ExactAnswer"]


class ExactAnswerConfig(NoOptions):
    """1 if the completion is the number in the prompt's reference, else 0."""


def _build_source(config: ArithmeticConfig, context: BuildContext) -> ArithmeticSource:
    return ArithmeticSource(config)


def _build_reward(config: ExactAnswerConfig, context: BuildContext) -> ExactAnswer:
    return ExactAnswer()


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"arithmetic": Extension(ArithmeticConfig, _build_source, check_start=check_start)}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"exact_answer": Extension(ExactAnswerConfig, _build_reward)}
