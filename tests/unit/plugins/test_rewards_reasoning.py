"""``reasoning_gym``: scorers of several tasks, entries in metadata, and answers that are code."""

import importlib.util
import inspect
import json
import warnings
from typing import Any

import hostile_answers
import numpy as np
import pytest
import rlax_rewards
from plugin_parts import built
from rlax_rewards.executed import is_harmless_arithmetic, is_harmless_literal
from test_rewards_text import MEGABYTE

from rlax_plugin.api import ConfigError, Ending, OverLimitError
from rlax_plugin.base.types import Prompt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS


def prompt_of(task: str, *, nested: bool = True, index: int = 0, **options: Any) -> Prompt:
    """An entry as it is after a file of JSON lines."""
    entries = reasoning_gym.create_dataset(task, size=9, seed=5, **options)
    entry = json.loads(json.dumps(entries[index]))
    metadata = {"metadata": entry["metadata"]} if nested else entry["metadata"]
    tokens = np.array([1], np.int32)
    return Prompt(f"{task}-{index}", tokens, entry["question"], entry["answer"], metadata)


@pytest.fixture(scope="module")
def reward():
    return built(rlax_rewards, "reward", "reasoning_gym")


def said(answer: str) -> str:
    return f"I think <answer>1</answer>, or rather\n<answer>\n{answer} </answer>"


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("task", ["countdown", "knights_knaves", "rearc"])
def test_a_right_answer_gets_1_and_a_wrong_one_less(reward, task, nested):
    prompt = prompt_of(task, nested=nested)
    assert reward(prompt, said(prompt.reference)) == 1.0
    assert reward(prompt, said("zebra")) < 0.5
    assert reward(prompt, prompt.reference) == reward(prompt, "") == 0.0


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("knight_swap", {"min_nodes": 6, "max_nodes": 6, "impossible_ratio": 0.0}),
        ("futoshiki", {"min_board_size": 4, "max_board_size": 4}),
    ],
)
def test_games_that_take_long_to_generate_are_scored_and_execute_nothing(
    reward, task, options, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for index in range(2):
        prompt = prompt_of(task, index=index, **options)
        before = json.dumps(prompt.metadata)
        assert reward(prompt, said(prompt.reference)) == 1.0
        wrong = ["zebra", "[]", '["w,A1"]', '["w,A1,A1"]', "[[1]]", "{}", "1e999", "[" * 100_000]
        assert all(reward(prompt, said(one)) < 0.5 for one in [*wrong, *CODE, "9" * MEGABYTE])
        assert json.dumps(prompt.metadata) == before  # the scorer of knight_swap writes into it
    assert not (tmp_path / "ran").exists()


def test_a_scorer_accepts_other_right_answers_and_gives_parts(reward):
    countdown = prompt_of("countdown")
    assert reward(countdown, said(f"({countdown.reference})*1")) < 1.0  # 1 is not among the numbers
    assert reward(countdown, said(f"0+{countdown.reference}".replace("0+", "(") + ")")) == 1.0
    queens = prompt_of("n_queens")
    other = queens.reference[::-1]  # for the scorer, this is a solution as well
    queens.metadata["metadata"]["valid_answers"].append(other)
    assert reward(queens, said(other)) == 1.0
    whole = built(rlax_rewards, "reward", "reasoning_gym", answer="whole", task="basic_arithmetic")
    plain = prompt_of("basic_arithmetic")
    bare = Prompt("p", plain.tokens, plain.text, plain.reference)
    assert whole(bare, plain.reference) == 1.0
    assert 0.0 < whole(bare, f"It is {plain.reference}") < 1.0


CODE = [
    "__import__('os').system('touch ran')",
    "open('ran', 'w')",
    "().__class__.__base__.__subclasses__()",
    "[open('ran', 'w') for x in [1]]",
    "oracle_answer",
    "entry",
    "f'{open(1)}'",
    "9**9**9",
    "(9**99)**99",
    "[1]*10**10",
    "lambda: 1",
    "x.func",
    "S('open(1)')",
    "exit()",
    "open('ran', 'w')!",
    "(" * 5000,
    "1+" * 5000 + "1",
    "\x00",
]


@pytest.mark.parametrize(
    "task",
    [
        name
        for name, (task, _) in sorted(DATASETS.items())
        if any(word in inspect.getsource(task.score_answer) for word in ("eval(", "parse_expr("))
    ],
)
def test_no_answer_is_executed(reward, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompt = prompt_of(task)
    assert reward(prompt, said(prompt.reference)) == 1.0
    assert all(reward(prompt, said(code)) < 0.5 for code in CODE)
    assert not (tmp_path / "ran").exists()


# Of complex_arithmetic "nan" was right; that of boxnet raises on a number, and has no answer.
HOSTILE = ["complex_arithmetic", "boxnet", "polynomial_equations"]
SLOW_TO_GENERATE = {"composite"}  # which needs options as well


def check_hostile_answers(reward, task) -> None:
    prompt = prompt_of(task)
    for text in hostile_answers.ALL:
        given = reward(prompt, said(text))
        right = text in ("1e-999", "-0.0")  # which may be 0, as it should be
        assert 0.0 <= given < 1.0 or right, (text[:60], given)


def test_a_scorer_that_takes_every_text_for_right_is_not_asked(reward):
    prompt = prompt_of("game_of_life_halting")
    other = {"True": "False", "False": "True"}[prompt.reference]
    assert [reward(prompt, said(one)) for one in (prompt.reference, other)] == [1.0, 0.0]


@pytest.mark.parametrize("task", HOSTILE)
def test_hostile_answers_are_not_right_and_raise_nothing(reward, task):
    check_hostile_answers(reward, task)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(DATASETS) - set(HOSTILE) - SLOW_TO_GENERATE))
def test_hostile_answers_of_all_tasks(reward, task):
    check_hostile_answers(reward, task)


@pytest.mark.parametrize(
    ("answer", "is_finite"), [("nan", 0), ("[nan, 1]", 0), ("nan+infj", 0), ("Nan and Bo", 1)]
)
def test_numbers_that_are_none_are_wrong_unless_they_are_words(reward, answer, is_finite):
    prompt = prompt_of("spell_backward")
    assert (reward(prompt, said(answer)) > 0) <= bool(is_finite)


def test_an_answer_that_takes_too_long_is_wrong_and_says_so(reward, monkeypatch):
    def limited(name, entry, answer):
        if answer is not None:
            raise OverLimitError("it took too long", Ending.OVER_TIME)
        return 0.0, ""

    monkeypatch.setattr(reward, "_score", limited)
    score = reward(prompt_of("countdown"), said("9**9**9"))
    assert (score.total, score.ending) == (0.0, Ending.OVER_TIME)


def test_an_entry_that_cannot_be_scored_has_no_reward_and_says_why(reward):
    prompt = prompt_of("n_queens")
    broken = {"source_dataset": "n_queens"}
    broken = Prompt("p", prompt.tokens, prompt.text, prompt.reference, broken)
    with pytest.raises(ValueError, match=r"prompt p: its entry cannot be scored: KeyError"):
        reward(broken, said("_ Q"))


def test_data_and_arithmetic_pass():
    assert all(
        map(is_harmless_literal, ["[[1, 0], [0, -1]]", "_ Q _\nQ _ _", "['a', 'b']", "1 0 1"])
    )
    formulas = ["94*4 - 61 - 6", "-8*x**4 + 2.5*x", "-4*(-2*x - 8)**(3/2)/3 + sin(3*x)"]
    assert all(map(is_harmless_arithmetic, formulas))
    harmful = ["5!", "[1]", "'a'", "x^2", "sin", "open(x)", "sin(x, evaluate=1)", "x**'a'"]
    assert [one for one in harmful if is_harmless_arithmetic(one)] == ["sin"]
    assert [one for one in CODE if is_harmless_arithmetic(one)] == []


def test_a_prompt_from_elsewhere_gives_no_reward(reward):
    plain = Prompt("p", np.array([1], np.int32), "?", "1", {"level": 3})
    with pytest.raises(ValueError, match=r"prompt p has no 'source_dataset' .* \['level'\]"):
        reward(plain, said("1"))
    with pytest.raises(ValueError, match="has no task 'nothing'"):
        built(rlax_rewards, "reward", "reasoning_gym", task="nothing")(plain, said("1"))


def test_without_the_package_a_run_does_not_start(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check = rlax_rewards.rlax_register_reward()["reasoning_gym"].check_start
    with pytest.raises(ConfigError, match=r"pip install '\.\[reasoning-gym\]'"):
        check(None, None)
