"""``math_verify``: verdicts made by hand, also from a thread, and what nobody can compute."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rlax_rewards
from plugin_parts import built
from rlax_rewards import MathVerify, MathVerifyConfig
from sections import section_with
from test_rewards_text import MEGABYTE, asked

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Ending,
    LimitedFunction,
    RlaxError,
    Score,
)

RIGHT, WRONG = 1.0, 0.0
# Reference, answer, verdict: what this module decides, and what of the library runs rely on.
VERDICTS = [
    ("1/2", "0.5", RIGHT),
    ("1/2", "0.49", WRONG),
    ("-3/4", r"\frac34", WRONG),
    ("1,234", "1{,}234", RIGHT),
    ("1234", r"1\,234", RIGHT),
    ("1234", "1 234", WRONG),  # a mixed number: 1 + 234
    ("1.5", "1,5", WRONG),  # two numbers
    (r"50\%", "50", RIGHT),
    ("1/3", "0.3333333", RIGHT),  # to six decimals
    ("1/3", "0.333", WRONG),
    ("x^2+2x+1", "(x+1)^2", RIGHT),
    ("x^2+2x+1", "(x+1)^3", WRONG),
    ("x=5", "5", RIGHT),
    (r"\{1,2,3\}", "3,1,2", RIGHT),
    ("(1,2)", "(2,1)", WRONG),
    ("10", r"10\text{ cm}", RIGHT),
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
# Each of these would take many seconds of CPU time, or all memory; test_hostile_answers has more.
HOSTILE = ["9^{9^9}", r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} ijk"]
# Deep or long, and still to be scored: reference, a right answer and a wrong one.
ORDINARY = [
    # A continued fraction of eight levels: a ratio of Fibonacci numbers.
    (r"\frac{55}{34}", r"1+\cfrac{1}{" * 8 + "1" + "}" * 8, r"1+\cfrac{1}{" * 7 + "1" + "}" * 7),
    (
        r"\begin{pmatrix}1&0&0\\0&1&0\\0&0&\frac{1}{2}\end{pmatrix}",
        r"\begin{bmatrix}1&0&0\\0&1&0\\0&0&0.5\end{bmatrix}",
        r"\begin{bmatrix}1&0&0\\0&1&0\\0&0&2\end{bmatrix}",
    ),
    (
        r"\{" + ",".join(map(str, range(1, 31))) + r"\}",
        ",".join(map(str, range(30, 0, -1))),
        ",".join(map(str, range(29, -1, -1))),
    ),
    ("2^{300}", str(2**300), str(2**300 + 1)),
    (r"\sum_{i=1}^{10}\sum_{j=1}^{10} ij", "3025", "3026"),
    (r"\frac{\sqrt{6}+\sqrt{2}}{4}", r"\frac{\sqrt{2+\sqrt{3}}}{2}", r"\frac{\sqrt{2}}{4}"),
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
def test_verdicts_from_a_thread(score, reference, answer, verdict):
    """math-verify's own time limits would raise there."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(score, answer, reference).result(60) == verdict


@pytest.mark.parametrize(("reference", "right", "wrong"), ORDINARY)
def test_deep_and_long_answers_are_scored(score, reference, right, wrong):
    assert [score(one, reference) for one in (right, reference, wrong)] == [RIGHT, RIGHT, WRONG]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_what_takes_more_than_its_cpu_time_is_wrong_and_the_next_is_scored(hurried, answer):
    hostile, ordinary = (hurried(asked("42"), rf"\boxed{{{one}}}") for one in (answer, "41+1"))
    # Some of it the library gives up by itself.
    assert hostile in (WRONG, Score(WRONG, ending=Ending.OVER_TIME)) and ordinary == RIGHT


@pytest.fixture
def short_of_memory():
    options = {"cpu_s": 60.0, "wait_s": 200.0, "memory_bytes": 96 << 20}
    verdict = LimitedFunction("short_of_memory:verdict", **options)
    yield verdict
    verdict.close()


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ("2^{3*10^9}", None),  # sympy swallows the MemoryError: the answer is not equal
        ("allocates 1", Ending.OVER_MEMORY),
        ("crashes 1", Ending.CRASHED),
    ],
)
def test_an_answer_whose_computation_runs_out_of_memory_scores_0(short_of_memory, answer, ending):
    reward = MathVerify(MathVerifyConfig(), short_of_memory)
    score = reward(asked("42"), rf"\boxed{{{answer}}}")
    assert isinstance(score, Score) == (ending is not None)
    assert score == (Score(0.0, ending=ending) if ending else 0.0)
    if not ending:
        assert short_of_memory("memory errors", None) > 0
    assert reward(asked("42"), r"\boxed{41+1}") == RIGHT


def test_a_comparing_process_that_is_killed_from_outside_is_no_wrong_answer(short_of_memory):
    reward = MathVerify(MathVerifyConfig(), short_of_memory)
    with pytest.raises(RlaxError, match="was ended from outside") as error:
        reward(asked("42"), r"\boxed{is killed 1}")
    assert error.value.ending == "process_ended"


def test_a_budget_must_leave_time_of_the_deadline():
    check = rlax_rewards.rlax_register_reward()["math_verify"].check_start
    chosen = [{"name": "x"}, {"name": "math_verify"}, {"name": "math_verify", "cpu_s": 6.0}]
    context = BuildContext(Path(), 0, section_with(rewards=chosen))
    check(MathVerifyConfig(cpu_s=5.0), context)
    with pytest.raises(ConfigError, match=r"rlax.rewards.2.cpu_s = 6.0: must be at most 5, half"):
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
