"""``exact_match`` and where answers stand, with texts that try to get a reward without one."""

import numpy as np
import pytest
import rlax_rewards
from plugin_parts import built
from rlax_rewards.answers import answer_in

from rlax_plugin.base.types import Prompt

MEGABYTE = 1 << 20


def asked(reference: str) -> Prompt:
    return Prompt("p", np.array([1], np.int32), "?", reference)


def score(completion: str, reference: str, **options: object) -> float:
    return built(rlax_rewards, "reward", "exact_match", **options)(asked(reference), completion)


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("whole", " \n 42\t", "42"),
        ("last_line", "first\n\n second \n\n", "second"),
        ("last_line", "", ""),
        ("marker", "so it is #### 42 \nThanks", "42"),
        ("marker", "#### 1 #### 2", "2"),
        ("marker", "####\n\n  7\n8", "7"),
        ("marker", "### 42", None),
        ("marker", "42 ####", ""),
        ("tag", "<answer> 1 </answer><answer>\n2</answer> 3", "2"),
        ("tag", "<answer>1<answer>2</answer></answer>", "2</answer>"),
        ("tag", "</answer>1<answer>", None),
        ("boxed", r"\boxed{1} and \boxed{2}", "2"),
        ("boxed", r"\boxed {\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\boxed{3}}", "3"),
        ("boxed", r"\boxed{\text{so } \boxed{4} \text{ or } \boxed{5}} 6", "5"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"{ \boxed{5}", "5"),
        ("boxed", r"\boxed{1} \boxed{2", "1"),
        ("boxed", r"\fbox{8}", "8"),
        ("boxed", r"\boxed{}", ""),
        ("boxed", r"boxed{3} \\boxed{4} \boxed 5", None),
    ],
)
def test_the_last_answer_of_a_place_is_found(place, text, answer):
    assert answer_in(text, place) == answer


@pytest.mark.parametrize(
    ("completion", "reference", "options", "reward"),
    [
        ("Paris", "Paris", {}, 1.0),
        ("\n Paris ", " Paris", {}, 1.0),
        ("paris", "Paris", {}, 0.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("Paris.", "Paris", {}, 0.0),
        ("It is Paris", "Paris", {}, 0.0),
        ("New\n  York", "New York", {}, 0.0),
        ("New\n  York", "New York", {"ignore_spaces": True}, 1.0),
        ("Zu\u0308rich", "Zürich", {}, 1.0),
        ("Zu\u0308rich", "Zürich", {"unicode": "exact"}, 0.0),
        ("\uff14\uff12", "42", {}, 0.0),
        ("\uff14\uff12", "42", {"unicode": "nfkc"}, 1.0),
        ("\u0664\u0662", "42", {"unicode": "nfkc"}, 0.0),  # Arabic-Indic digits are other letters
        ("\u200f42", "42", {"unicode": "nfkc"}, 0.0),
        ("4\u200b2", "42", {"unicode": "nfkc"}, 0.0),
        ("\\x0042", "42", {}, 0.0),  # as NUL reaches rewards
        ("\x0042", "42", {}, 0.0),
        ("\ufffd", "\ud800", {}, 0.0),
        ("\ud800", "42", {"unicode": "nfkc", "ignore_case": True}, 0.0),
        ("", "42", {}, 0.0),
        ("42\n42", "42", {"answer": "last_line"}, 1.0),
        ("</think>\n42", "42", {"answer": "marker", "marker": "</think>"}, 1.0),
    ],
)
def test_exact_match(completion, reference, options, reward):
    assert score(completion, reference, **options) == reward


@pytest.mark.parametrize("reference", ["", " \n "])
def test_without_a_reference_there_is_no_reward(reference):
    with pytest.raises(ValueError, match="prompt p has no reference"):
        score("", reference)
