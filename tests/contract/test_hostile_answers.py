"""An answer that cannot be scored because of what it says is worth no more than a wrong one.

Every built-in reward scores a corpus of hostile completions in another process, which ends it if
that takes more CPU time than ordinary machines need by far.
"""

from collections.abc import Iterator
from typing import Any

import hostile_answers
import pytest
from test_built_ins import BUILT_IN

from rlax_plugin.api import LimitedFunction
from rlax_plugin.build import Registry
from rlax_plugin.ports.manager import Manager

CPU_S = 20.0  # for a corpus; most take less than one
ELSEWHERE = {
    "http_verifier": "what a server says is not the text's",
    "llm_judge": "the same",
    "python_tests": "tests/unit/plugins/code has what code does to its sandbox",
}
# Name, options, prompt, wrong answers.
CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("even", {}, {}, ["1", "2"]),  # a toy: every text has a value
    ("exact_answer", {}, {"reference": "42"}, ["41"]),
    ("exact_match", {}, {"reference": "forty-two"}, ["41"]),
    (
        "exact_match",
        {"answer": "tag", "unicode": "nfkc", "ignore_case": True, "ignore_spaces": True},
        {"reference": "forty two"},
        ["<answer>41</answer>"],
    ),
    ("format", {"pattern": "(?s)(x|xx)+<end>", "timeout_s": 0.05}, {}, ["41"]),
    ("format", {"pattern": r"(\d+)+<end>", "match": "search", "timeout_s": 0.05}, {}, ["41"]),
    ("length", {}, {}, ["41"]),
    ("math_verify", {"cpu_s": 0.2}, {"reference": "x^2+1"}, ["\\boxed{x}"]),
    ("numeric", {}, {"reference": "42"}, ["41"]),
    ("numeric", {"answer": "marker", "percent": True}, {"reference": "42"}, ["#### 41"]),
    (
        "numeric",
        {"answer": "whole", "tolerance": 0.5, "relative_tolerance": 0.1},
        {"reference": "1e300"},
        ["41"],
    ),
    ("token_parity", {}, {}, ["1"]),
]


def test_there_is_a_case_of_every_built_in_reward() -> None:
    offered = Registry(Manager(BUILT_IN)).offers["reward"]
    here = {name for name, *_ in CASES} | {"reasoning_gym"}
    assert here | set(ELSEWHERE) == set(offered) and not here & set(ELSEWHERE)


@pytest.fixture(scope="module")
def score() -> Iterator[LimitedFunction]:
    found = hostile_answers.in_bounded_work(CPU_S)
    yield found
    found.close()


@pytest.mark.parametrize(("name", "options", "about", "wrong"), CASES, ids=range(len(CASES)))
def test_hostile_answers_are_worth_no_more_than_wrong_ones(score, name, options, about, wrong):
    _, bad = score(name, options, about, wrong, [])
    assert bad == []
