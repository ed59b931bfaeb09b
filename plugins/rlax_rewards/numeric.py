"""The reward ``numeric``: the answer is the reference's number, however it is written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.api import Prompt, Reward
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in

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
    """1.0 if the answer is the reference's number, else 0.0; see ``rlax_rewards.numeric``.

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


_LONGEST = 1000  # characters of one number
_LARGEST_EXPONENT = 400

_DIGITS = r"(?>\d{1,3}(?:,\d{3})++|\d++)"
_NUMBER = re.compile(
    rf"""
    (?<!\d[.,/:])(?<!\w)                         # it does not begin inside a word or number
    (?:(?<![\w)\]}}])(?P<sign>[-+\u2212]))?+
    (?P<tex>\\[dt]?frac\s*+\{{\s*+(?P<above>[-+]?\d++)\s*+\}}\s*+\{{\s*+(?P<below>[-+]?\d++)\s*+\}}|
    [$\u20ac\u00a3]?+
    (?:(?P<whole>{_DIGITS})(?P<point>\.\d++)?+|(?<!\.)(?P<only>\.\d++))
    (?P<exponent>[eE][-+]?\d++)?+
    (?:/(?P<denominator>\d++))?+
    )
    (?P<percent>\s?%)?+
    (?![^\W\d]*+\d|[.,/:]\d|_)                   # nor does it end inside one
    """,
    re.VERBOSE,
)
_TEX = re.compile(r"\{,\}|\\[,!]|\\(?=[$%])")


def whole_number_in(text: str, percent: bool = False) -> Fraction | None:
    """Returns the number that a text consists of, ignoring a final full stop; None if it is none.

    Args:
      text: the text.
      percent: True: 50% is 1/2; otherwise the sign is ignored.
    """
    match = _NUMBER.fullmatch(_plain(text.strip().removesuffix(".").rstrip()))
    return None if match is None else _value(match, percent)


def only_number_in(text: str, percent: bool = False) -> Fraction | None:
    """Returns the number in a text that has exactly one; else None."""
    found = list(itertools.islice(_values(_NUMBER.finditer(_plain(text)), percent), 2))
    return found[0] if len(found) == 1 else None


def last_number_in(text: str, percent: bool = False) -> Fraction | None:
    """Returns the last number in a text; None if it has none."""
    return next(_values(reversed(list(_NUMBER.finditer(_plain(text)))), percent), None)


def _plain(text: str) -> str:
    return _TEX.sub(lambda match: "," if match[0] == "{,}" else "", text)


def _values(matches: Iterable[re.Match[str]], percent: bool) -> Iterator[Fraction]:
    found = (_value(match, percent) for match in matches)
    return (value for value in found if value is not None)


def _value(match: re.Match[str], percent: bool) -> Fraction | None:
    text, behind = match[0], match.string[match.end() : match.end() + 1]
    if len(text) > _LONGEST or behind.isnumeric():
        return None
    if not all(c.isascii() for c in text if c.isdecimal()):
        return None
    if match["tex"].startswith("\\"):
        above, below = int(match["above"]), int(match["below"])
    else:
        exponent = int(match["exponent"][1:]) if match["exponent"] else 0
        if abs(exponent) > _LARGEST_EXPONENT:
            return None
        digits = (match["whole"] or "0").replace(",", "") + (match["point"] or match["only"] or "")
        number = Fraction(digits) * Fraction(10) ** exponent
        above, below = number, int(match["denominator"] or 1)
    if below == 0:
        return None
    value = Fraction(above) / below
    if match["sign"] in ("-", "\u2212"):
        value = -value
    return value / 100 if percent and match["percent"] else value
