"""``math_verify``: verdicts made by hand, also from a thread, and what nobody can compute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rlax_rewards
from plugin_parts import built
from rlax_rewards import MathVerifyConfig
from sections import section_with
from test_rewards_text import MEGABYTE, asked

from rlax_plugin.api import BuildContext, ConfigError

RIGHT, WRONG = 1.0, 0.0
VERDICTS = [  # reference, answer, verdict
    ("1/2", "0.5", RIGHT),
    ("1/2", r"\frac{1}{2}", RIGHT),
    ("1/2", "2/4", RIGHT),
    ("1/2", "0.49", WRONG),
    ("-3/4", r"-\frac{3}{4}", RIGHT),
    ("-3/4", r"\frac{-3}{4}", RIGHT),
    ("-3/4", r"\frac34", WRONG),
    ("1,234", "1234", RIGHT),
    ("1,234", "1{,}234", RIGHT),
    ("1234", r"1\,234", RIGHT),
    ("1234", "1 234", WRONG),  # a mixed number: 1 + 234
    ("1.5", "1,5", WRONG),  # two numbers
    ("3.5", r"3\frac{1}{2}", RIGHT),
    (r"50\%", "0.5", RIGHT),
    (r"50\%", "50", RIGHT),
    ("-5", "5", WRONG),
    ("1", "1.0000001", WRONG),
    ("1/3", "0.3333333", RIGHT),  # to six decimals
    ("1/3", "0.333", WRONG),
    (r"\pi", "3.14159265", RIGHT),
    (r"\pi", "3.14", WRONG),
    (r"\sqrt{8}", r"2\sqrt{2}", RIGHT),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", RIGHT),
    (r"\log_2 8", "3", RIGHT),
    ("5!", "120", RIGHT),
    (r"\binom{5}{2}", "10", RIGHT),
    ("1000", "10^3", RIGHT),
    ("7", "2^3-1", RIGHT),
    ("x^2+2x+1", "(x+1)^2", RIGHT),
    ("x^2+2x+1", "(x+1)^3", WRONG),
    ("2x", "x+x", RIGHT),
    ("x", "y", WRONG),
    (r"\sin^2 x+\cos^2 x", "1", RIGHT),
    ("2+3i", "3i+2", RIGHT),
    ("x=5", "5", RIGHT),
    ("5", "x=5", RIGHT),
    ("y=2x+3", "2x-y+3=0", RIGHT),
    ("x>3", "3<x", RIGHT),
    (r"x\ge3", "x>3", WRONG),
    (r"\{1,2,3\}", "3,1,2", RIGHT),
    (r"\{1,2,3\}", r"\{1,2\}", WRONG),
    ("(1,2)", "(2,1)", WRONG),
    ("[0,1)", "[0,1]", WRONG),
    (r"\infty", r"-\infty", WRONG),
    (r"\emptyset", r"\{\}", RIGHT),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", RIGHT),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", WRONG),
    ("10", r"10\text{ cm}", RIGHT),
    (r"90^\circ", "90", RIGHT),
    (r"\text{(A)}", "A", RIGHT),
    ("A", "B", WRONG),
    (r"\text{east}", "East", RIGHT),
    ("east", "seat", WRONG),  # equal as products of letters
    ("42", r"41 \text{ or } 42", WRONG),
    ("42", "41, 42", WRONG),
    ("42", "42 = 42, 43", WRONG),
    ("$5$", "5", RIGHT),
    (r"It is $2+3$, so \boxed{5}.", r"\$5", RIGHT),
    ("5", "\u0665", WRONG),
    ("5", "\uff15", WRONG),
    ("5", "five", WRONG),
    ("5", "", WRONG),
]
# Each of these would take many seconds of CPU time, or all memory.
HOSTILE = [
    "9^{9^9}",
    "100000!",
    r"((((9!)!)!)!)",
    r"\begin{pmatrix}10^{99999}&2\\3&4\end{pmatrix}",
    "2^{" * 30 + "2" + "}" * 30,
    "(x+1)^{100000}",
    r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} ijk",
    r"\sum_{i=1}^{\infty} \frac{\sin(i)}{i^3+1}",
    r"\frac{" * 39 + "1" + "}{2}" * 39,
    r"\log{" * 38 + "x" + "}" * 38,
    "+".join(rf"\sin({i}x)\cos({i}y)" for i in range(1, 31)),
]
ODD = [
    "!" * 900,
    r"\frac{1}{0}",
    r"\frac{" * 100,
    "{" * 400,
    "1" * 999,
    "4" * 5000,
    "1," * 400 + "1",
    "\ud800",
    "\x00",
    "\u200f\u202e",
    "__import__('os')",
    "42" * MEGABYTE,
]


# Deep or long, and still to be scored: reference, a right answer and a wrong one.
ORDINARY = [
    # A continued fraction of eight levels: a ratio of Fibonacci numbers.
    (r"\frac{55}{34}", r"1+\cfrac{1}{" * 8 + "1" + "}" * 8, r"1+\cfrac{1}{" * 7 + "1" + "}" * 7),
    ("1", r"\sqrt{" * 10 + "1" + "}" * 10, r"\sqrt{" * 10 + "2" + "}" * 10),
    (
        r"\begin{pmatrix}1&0&0\\0&1&0\\0&0&\frac{1}{2}\end{pmatrix}",
        r"\begin{bmatrix}1&0&0\\0&1&0\\0&0&0.5\end{bmatrix}",
        r"\begin{bmatrix}1&0&0\\0&1&0\\0&0&2\end{bmatrix}",
    ),
    (
        r"(-\infty,-2)\cup[0,\frac{3}{2})\cup(5,\infty)",
        r"(-\infty, -2) \cup [0, 1.5) \cup (5, \infty)",
        r"(-\infty, -2] \cup [0, 1.5) \cup (5, \infty)",
    ),
    (
        r"\{" + ",".join(map(str, range(1, 31))) + r"\}",
        ",".join(map(str, range(30, 0, -1))),
        ",".join(map(str, range(29, -1, -1))),
    ),
    ("2^{300}", str(2**300), str(2**300 + 1)),
    (str(3**200), "3^{200}", "3^{201}"),
    (str(10**99 + 7), f"{10**99 + 7:,}", str(10**99 + 8)),
    ("2^{2024}-1", "4^{1012}-1", "4^{1013}-1"),
    (
        r"\begin{pmatrix}10000&-2\\3&123456\end{pmatrix}",
        r"\begin{bmatrix}10^4&-2\\3&123456\end{bmatrix}",
        r"\begin{pmatrix}10000&-2\\3&123457\end{pmatrix}",
    ),
    ("12345", r"\lfloor 12345.5 \rfloor", r"\lceil 12345.5 \rceil"),
    (r"\frac{20000}{3} \text{ (mod 7)}", r"\frac{20000}{3}", r"\frac{20001}{3}"),
    ("20!", "2432902008176640000", "2432902008176640001"),
    (r"\sum_{k=1}^{100} k", "5050", "5051"),
    (r"\sum_{i=1}^{10}\sum_{j=1}^{10} ij", "3025", "3026"),
    (r"\sin 2x + \cos 2x", r"2\sin x\cos x+\cos^2 x-\sin^2 x", r"2\sin x\cos x+\cos^2 x"),
    (r"\ln(\ln(\ln(5)))", r"\ln{\ln{\ln{5}}}", r"\ln{\ln{5}}"),
    (r"\frac{\sqrt{6}+\sqrt{2}}{4}", r"\frac{\sqrt{2+\sqrt{3}}}{2}", r"\frac{\sqrt{2}}{4}"),
    (
        "x^5+5x^4+10x^3+10x^2+5x+1",
        "(x+1)^5",
        "(x+1)^4",
    ),
    (r"\left(\left(\frac{a}{b}\right)^2\right)^3", r"\frac{a^6}{b^6}", r"\frac{a^5}{b^6}"),
    (r"(\frac{1}{2}, -\sqrt{3}, 7)", r"(0.5, -\sqrt{3}, 7)", r"(0.5, \sqrt{3}, 7)"),
]


@pytest.fixture(scope="module")
def reward():
    return built(rlax_rewards, "reward", "math_verify")


@pytest.fixture(scope="module")
def hurried():
    return built(rlax_rewards, "reward", "math_verify", cpu_s=0.3)


@pytest.fixture(scope="module")
def score(reward):
    def of(answer: str, reference: str) -> float:
        return reward(asked(reference), f"So the answer is $\\boxed{{{answer}}}$.")

    return of


@pytest.mark.parametrize(("reference", "answer", "verdict"), VERDICTS)
def test_verdicts(score, reference, answer, verdict):
    assert score(answer, reference) == verdict


def test_verdicts_from_a_thread(score):
    """math-verify's own time limits would raise there."""
    with ThreadPoolExecutor(1) as thread:
        found = [thread.submit(score, answer, reference) for reference, answer, _ in VERDICTS]
        assert [one.result() for one in found] == [verdict for *_, verdict in VERDICTS]


@pytest.mark.parametrize(("reference", "right", "wrong"), ORDINARY)
def test_deep_and_long_answers_are_scored(score, reference, right, wrong):
    assert [score(one, reference) for one in (right, reference, wrong)] == [RIGHT, RIGHT, WRONG]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_what_takes_more_than_its_cpu_time_is_wrong_and_the_next_is_scored(hurried, answer):
    found = [hurried(asked("42"), rf"\boxed{{{one}}}") for one in (answer, "41+1")]
    assert found == [WRONG, RIGHT]


@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
def test_odd_answers_are_wrong(hurried, answer):
    assert hurried(asked("42"), rf"\boxed{{{answer}}}") == WRONG


def test_a_budget_must_leave_time_of_the_deadline():
    check = rlax_rewards.rlax_register_reward()["math_verify"].check_start
    chosen = [{"name": "x"}, {"name": "math_verify", "cpu_s": 6.0}]
    context = BuildContext(Path(), 0, section_with(rewards=chosen))
    check(MathVerifyConfig(cpu_s=5.0), context)
    with pytest.raises(ConfigError, match=r"rlax.rewards.1.cpu_s = 6.0: must be at most 5, half"):
        check(MathVerifyConfig(cpu_s=6.0), context)


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        (r"\boxed{41} \boxed{42}", RIGHT),
        (r"\boxed{42} \boxed{41}", WRONG),
        (r"\boxed{\boxed{42}}", RIGHT),
        ("The answer is 42.", WRONG),
        (r"\boxed{41}" * (MEGABYTE // 10) + r"\boxed{42}", RIGHT),
        (r"\boxed{" * (MEGABYTE // 7), WRONG),
        ("$" * MEGABYTE, WRONG),
        ("", WRONG),
    ],
)
def test_the_last_box_counts(reward, completion, verdict):
    assert reward(asked("42"), completion) == verdict


def test_other_places():
    line = built(rlax_rewards, "reward", "math_verify", answer="last_line")
    assert line(asked("x^2"), "so\n$x \\cdot x$\n") == RIGHT
    whole = built(rlax_rewards, "reward", "math_verify", answer="whole")
    assert [whole(asked("4"), "2+" + " " * n + "2") for n in (997, 998)] == [RIGHT, WRONG]


@pytest.mark.parametrize("reference", ["", "9^{9^9}", r"\frac{", "?"])
def test_a_reference_that_cannot_be_read_gives_no_reward(hurried, reference):
    with pytest.raises(ValueError, match=r"prompt p: cannot read|prompt p has no reference"):
        hurried(asked(reference), r"So the answer is $\boxed{2}$.")
