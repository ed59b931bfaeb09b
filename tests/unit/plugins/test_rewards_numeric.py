"""``numeric``: which texts are numbers, which number counts, and how close it must be."""

from fractions import Fraction

import pytest
import rlax_rewards
from plugin_parts import built
from rlax_rewards.numeric import last_number_in, only_number_in, whole_number_in
from test_rewards_text import MEGABYTE, asked


def score(completion: str, reference: str, **options: object) -> float:
    return built(rlax_rewards, "reward", "numeric", **options)(asked(reference), completion)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234.5", "2469/2"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("-3/4", "-3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"-\dfrac{ 3 }{ 4 }", "-3/4"),
        ("\u22127", "-7"),
        ("+.5", "1/2"),
        ("6.02e3", "6020"),
        ("1e-2", "1/100"),
        ("$18.50", "37/2"),
        (r"\$5", "5"),
        ("50 %", "50"),
        ("007", "7"),
        ("9" * 999, "9" * 999),
    ],
)
def test_a_number_is_read_exactly(text, number):
    assert whole_number_in(text) == last_number_in(f"it is {text}") == Fraction(number)
    assert whole_number_in(f" {text}. ") == only_number_in(f"**{text}** apples") == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        *("1,23", "1,234,56", "1234,567", "1.2.3", "10:30", "(3,4)", "x2", "0x1F", "1_000"),
        *("1e5e5", "10\u00b2", "\u00bd", "3\u00bd", "\u2167", "1e999", "3/0", "1/2/3", ""),
        *("9" * 1001, "\uff14\uff12", "\u0664\u0662", "4\uff12", "inf", "e5", "\ud800", "\x00"),
        r"\frac{1}{0}",
    ],
)
def test_what_is_no_number_is_not_read_in_part(text):
    assert last_number_in(text) is None and whole_number_in(text) is None


@pytest.mark.parametrize(
    ("completion", "options", "reward"),
    [
        ("First 41, no: 42.", {}, 1.0),
        ("42 or 41", {}, 0.0),
        ("the answer is...42", {}, 1.0),
        ("42km", {}, 1.0),
        ("1 042", {}, 1.0),  # two numbers, the last one is 42
        ("-42", {}, 0.0),
        ("50-42", {}, 1.0),  # between two numbers it is no sign
        ("-84/-2", {}, 0.0),
        ("84/2", {}, 1.0),
        (r"\frac{84}{2}", {}, 1.0),
        ("42.0", {}, 1.0),
        ("42.0000000001", {}, 0.0),
        ("42.01", {"tolerance": 0.01}, 1.0),  # the float is a little less than a hundredth
        ("42.010001", {"tolerance": 0.01}, 0.0),
        ("42.4", {"relative_tolerance": 0.01}, 1.0),
        ("42.5", {"relative_tolerance": 0.01}, 0.0),
        ("42.42", {"tolerance": 0.01, "relative_tolerance": 0.01}, 1.0),  # the larger of both,
        ("42.43", {"tolerance": 0.01, "relative_tolerance": 0.01}, 0.0),  # and not their sum
        ("42%", {}, 1.0),
        ("4200%", {"percent": True}, 1.0),
        ("42%", {"percent": True}, 0.0),
        ("\uff14\uff12", {}, 0.0),
        ("\u200f42", {}, 1.0),
        ("4\u200b2", {}, 0.0),
        ("42", {"answer": "whole"}, 1.0),
        ("It is 42", {"answer": "whole"}, 0.0),
        ("42 km", {"answer": "whole"}, 0.0),
        ("#### 42 apples\n43", {"answer": "marker"}, 1.0),
        ("#### 42 or 43", {"answer": "marker"}, 0.0),
        ("#### none\n42", {"answer": "marker"}, 0.0),
        ("42", {"answer": "marker"}, 0.0),
        ("x = 42\n", {"answer": "last_line"}, 1.0),
        (r"\boxed{41} no \boxed{42\text{ km}} 43", {"answer": "boxed"}, 1.0),
        (r"\boxed{41, 42}", {"answer": "boxed"}, 0.0),
        ("answer is 42" * 1000, {}, 1.0),
        ("", {}, 0.0),
        ("." * MEGABYTE + "42", {}, 1.0),
    ],
)
def test_numeric(completion, options, reward):
    assert score(completion, "42", **options) == reward


def test_a_reference_may_be_a_solution_with_a_marker():
    solution = "48/2 = <<48/2=24>>24\n48+24 = <<48+24=72>>72\n#### 72"
    assert score("so 72", solution) == 1.0 and score("so 24", solution) == 0.0
    assert score("1000", "1,000") == 1.0


@pytest.mark.parametrize("reference", ["", "seventy", "1 or 2", "#### 1 or 2"])
def test_a_reference_that_is_no_number_gives_no_reward(reference):
    with pytest.raises(ValueError, match=r"prompt p: reference .* is not a number"):
        score("1", reference)
