"""The environments ``single_turn`` and ``calculator``."""

from __future__ import annotations

import re

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    Answer,
    BuildContext,
    ConfigError,
    Environment,
    EpisodeLimit,
    Extension,
    NoOptions,
    Outcome,
    PositiveInt,
    Prompt,
    Section,
    Session,
    hookimpl,
)

_MOST_DIGITS = 12  # of an operand, and so of what a result may cost
_EXPRESSION = re.compile(r"(-?[0-9]{1,12})([-+*])(-?[0-9]{1,12})")


class SingleTurnConfig(NoOptions):
    """The policy answers once, and its answer is scored."""


class SingleTurn(Environment):
    """Ends every episode with its first answer, so that no process needs to play it."""

    deterministic = True

    def first(self, prompt: Prompt) -> np.ndarray:
        return prompt.tokens

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        return Outcome()


class CalculatorConfig(Section):
    """The policy may have expressions calculated before it answers.

    If an answer has an expression such as 12+34 between the two marks, its value is given to the
    policy, and the policy continues. The first answer without the marks ends the episode.
    """

    role: str = Field(
        default="",
        description="role of the chat message in which the value is given, such as tool or user; "
        "empty: it is given as plain text behind the answer",
    )

    begin: str = Field(
        default="-",
        description="mark before an expression; with both marks empty, an answer is an expression",
    )
    end: str = Field(
        default="=",
        description="mark behind an expression; empty: the end of the answer. So if the mark is a "
        "stop string of the prompt source, before which the text of an answer ends",
    )
    result: str = Field(
        default="=", description="text that the policy is given before the value of its expression"
    )
    after: str = Field(default="=", description="text that is given behind the value")
    max_calls: PositiveInt = Field(
        default=1, description="number of expressions that are calculated in one episode at most"
    )


class Calculator(Environment):
    """Calculates sums, differences and products of two whole numbers of at most 12 digits."""

    deterministic = True

    def __init__(self, config: CalculatorConfig):
        self._config = config
        begin, end = re.escape(config.begin), re.escape(config.end)
        # Without marks all of an answer is an expression.
        marked = begin or end
        pattern = f"{begin}(.{{1,64}}?){end or r'\Z'}"
        self._call = re.compile(pattern if marked else "(.{0,64})")

    def first(self, prompt: Prompt) -> np.ndarray:
        return prompt.tokens

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        answer: Answer = session.answer
        calls = wrong = 0
        while calls < self._config.max_calls and (call := self._call.search(answer.text)):
            value = calculated(call[1])
            calls, wrong = calls + 1, wrong + (value is None)
            # What cannot be calculated has no value: the policy goes on behind the marks.
            shown = "" if value is None else str(value)
            try:
                given = f"{self._config.result}{shown}{self._config.after}"
                role = self._config.role
                answer = await session.sample([{"role": role, "content": given}] if role else given)
            except EpisodeLimit:
                return Outcome(ended="cut", metrics=_metrics(calls, wrong))
        return Outcome(metrics=_metrics(calls, wrong))


def _check(config: CalculatorConfig, context: BuildContext) -> None:
    """Checks that the prompt source can encode what is given to the policy, by encoding a value.

    Raises:
      ConfigError: messages with this role cannot be given.
    """
    if not config.role:
        return
    key, choice = "rlax.prompt_source", context.section.prompt_source
    source = context.part("prompt_source", choice, key)
    try:
        messages = [{"role": config.role, "content": "0"}]
        source.encode_messages(messages, np.array(source.stop_ids[:1], np.int32))
    except ValueError as error:
        raise ConfigError("rlax.environment.role", config.role, str(error)) from error


def _metrics(calls: int, wrong: int) -> dict[str, float]:
    return {"calculations": float(calls), "calculations_failed": float(wrong)}


def calculated(expression: str) -> int | None:
    """Returns the value of ``a+b``, ``a-b`` or ``a*b``; None if the text is anything else."""
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None or not expression.isascii():
        return None
    a, b = int(found[1]), int(found[3])
    return {"+": a + b, "-": a - b, "*": a * b}[found[2]]


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {
        "single_turn": Extension(SingleTurnConfig, lambda config, context: SingleTurn()),
        "calculator": Extension(
            CalculatorConfig, lambda config, context: Calculator(config), check=_check
        ),
    }
