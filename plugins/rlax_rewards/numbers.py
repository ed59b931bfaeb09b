r"""Reads numbers in texts exactly, as fractions.

The following count as numbers, apart from a sign (``+``, ``-`` or the minus sign U+2212):

- decimal digits, with ``,`` between groups of three or without, decimals after ``.``, and an
  exponent: ``1,234.5``, ``.5``, ``6.02e23``. TeX's ``1{,}234`` and ``1\,234`` are the same.
- a fraction of whole numbers: ``-3/4``, ``\frac{3}{4}``, ``\dfrac{-3}{4}``.
- a currency sign before a number, and a percent sign after it, belong to it.

The following do not, on purpose: other groups of digits (``1,23``, ``1 234``), several points
(``1.2.3``), times (``10:30``), numbers inside words (``x2``, ``0x1F``, ``1_000``), superscripts and
characters such as ``½``, divisions by 0, more than 1,000 characters, and exponents above 400. Such
a text is skipped as a whole; no part of it is read as a number. Nor are digits of other scripts,
such as Arabic-Indic or full-width ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

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
