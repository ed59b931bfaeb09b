"""The reward ``numeric``: the answer is the reference's number, however it is written."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.api import Prompt, Reward
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in
from rlax_rewards.numbers import last_number_in, only_number_in, whole_number_in

_Tolerance = Annotated[float, Field(ge=0)]


class NumericConfig(AnswerConfig):
    """1 if the answer is the number in the prompt's reference, else 0."""

    answer: Place | Literal["last_number"] = Field(  # pyright: ignore
        "last_number",
        description=f"where the number is. last_number: the last one of the completion; {PLACES}. "
        "In a line, tag or box there must be exactly one number",
    )
    tolerance: _Tolerance = Field(
        0.0, description="largest difference from the reference; 0: equal, as exact fractions"
    )
    relative_tolerance: _Tolerance = Field(
        0.0, description="the same as a share of the reference; the larger of both applies"
    )
    percent: bool = Field(False, description="true: 50% is 0.5; false: a percent sign is ignored")


class Numeric(Reward):
    """1.0 if the answer is the reference's number, else 0.0; see ``rlax_rewards.numbers``.

    The reference is a number, or a text such as GSM8K's solutions, with the number after the last
    marker.
    """

    def __init__(self, config: NumericConfig):
        self._config = config

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion.

        Raises:
          ValueError: the prompt's reference is not a number.
        """
        expected = whole_number_in(prompt.reference, percent=self._config.percent)
        if expected is None:
            expected = self._only(answer_in(prompt.reference, "marker", marker=self._config.marker))
        if expected is None:
            shown = prompt.reference[:100]
            raise ValueError(f"prompt {prompt.id}: reference {shown!r} is not a number")
        found = self._found(completion)
        return float(found is not None and self._close(found, expected))

    def _found(self, completion: str) -> Fraction | None:
        config = self._config
        if config.answer == "last_number":
            return last_number_in(completion, percent=config.percent)
        if config.answer == "whole":
            return whole_number_in(completion, percent=self._config.percent)
        return self._only(
            answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        )

    def _only(self, text: str | None) -> Fraction | None:
        return only_number_in(text or "", percent=self._config.percent)

    def _close(self, found: Fraction, expected: Fraction) -> bool:
        config = self._config
        share = _exactly(config.relative_tolerance) * abs(expected)
        return abs(found - expected) <= max(_exactly(config.tolerance), share)


def _exactly(tolerance: float) -> Fraction:
    """Returns a tolerance as written in the config: 0.01 is a hundredth."""
    return Fraction(repr(tolerance))
