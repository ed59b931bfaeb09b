"""The arguments of functions of each form, and the values that they may return."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reward_pools import answers_of

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.types import Prompt, Score
from rlax_plugin.reward.functions.calling import FunctionFilter, ReturnedError, as_reward
from rlax_plugin.reward.functions.checking import check_columns
from rlax_plugin.reward.functions.signatures import Signature, function_of, signature_of
from rlax_plugin.reward.messages import score_from
from rlax_plugin.reward.process import form_of
from rlax_plugin.testing import make_episode, make_group, make_prompt, make_sampled

PROMPT = replace(make_prompt("6*7=", "42"), metadata={"level": 3, "topic": "sums"})
TEXTS = ("42", "41")
MESSAGES = [{"role": "user", "content": "6*7="}]


def episodes(texts: tuple[str, ...] = TEXTS) -> list[Any]:
    sampled = make_sampled(tokens=[7, 8, 2])
    return [make_episode(sampled, index=i, text=text) for i, text in enumerate(texts)]


def reward(function: Callable[..., Any]) -> Any:
    return as_reward(function, signature_of(function, function.__name__, "reward", "f.py"))


def totals(*functions: Callable[..., Any], prompt: Prompt = PROMPT) -> list[Any]:
    """The totals of the two samples, as a reward process computes them; a text is an error."""

    answers = answers_of([form_of(reward(one)) for one in functions], episodes(), prompt)
    weights = [1.0] * len(functions)
    return [one.get("error") or score_from(one, weights, [3]).total for one in answers]


def test_one_sample_is_given_what_it_names() -> None:
    def right(completion, reference):
        return completion == reference

    def levelled(completion, level, factor=10):
        return level * factor

    def from_all(completion, **columns):
        return columns["level"] + len(columns["tokens"]) + len(columns["prompt"])

    def of_metadata(completion, metadata):
        return len(metadata["topic"])

    assert totals(right) == [1.0, 0.0]
    assert totals(levelled) == [30.0, 30.0]
    assert totals(from_all) == [10.0, 10.0]  # 3 + 3 tokens + "6*7="
    assert totals(of_metadata) == [4.0, 4.0]
    assert totals(right, levelled) == [31.0, 30.0]


def test_tokens_are_sent_only_if_a_reward_takes_them() -> None:
    def text(completion):
        return 0.0

    def counted(completion, tokens):
        return tokens[0] + len(tokens)

    assert not form_of(reward(text)).tokens
    assert form_of(reward(counted)).tokens
    assert totals(counted) == [10.0, 10.0]


def test_async_functions_are_awaited() -> None:
    async def sample(completion):
        await asyncio.sleep(0)
        return completion == "42"

    async def tokens(completion, tokens):
        return len(tokens)

    async def group(completions):
        return [len(completions)] * len(completions)

    assert all(form_of(reward(one)).waits for one in (sample, tokens, group))
    assert totals(sample, tokens, group) == [6.0, 5.0]


def test_a_group_is_given_lists_as_trl_passes_them() -> None:
    seen: dict[str, Any] = {}

    def trl(prompts, completions, completion_ids, level, **columns):
        seen.update(columns, prompts=prompts, completions=completions, ids=completion_ids)
        return [float(text == "42") + one for text, one in zip(completions, level, strict=True)]

    assert totals(trl) == [4.0, 3.0]
    assert seen["prompts"] == ["6*7="] * 2 and seen["completions"] == list(TEXTS)
    assert seen["ids"] == [[7, 8, 2]] * 2 and seen["reference"] == ["42"] * 2
    assert seen["topic"] == ["sums"] * 2


def test_completions_are_messages_exactly_if_the_question_is() -> None:
    chat = replace(PROMPT, metadata={"messages": MESSAGES})

    def group(prompts, completions):
        assert prompts == [MESSAGES] * 2
        return [len(one[0]["content"]) + (one[0]["role"] == "assistant") for one in completions]

    def sample(prompt, completion):
        return len(prompt) + len(completion)

    assert totals(group, prompt=chat) == [3.0, 3.0]
    assert totals(sample, prompt=chat) == [6.0, 6.0]


def test_none_adds_nothing_and_a_sample_without_any_score_has_no_reward() -> None:
    def some(completions):
        return [1.5, None]

    def all_of_them(completion):
        return 0.25

    assert totals(some, all_of_them) == [1.75, 0.25]
    right, wrong = totals(some)
    assert right == 1.5
    assert wrong == "no reward gave this sample a score: each returned None"


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1), np.int64(1), np.bool_(True)])
def test_numbers_are_taken_exactly(value: object) -> None:
    assert totals(lambda_of(value)) == [1.0, 1.0]


def lambda_of(value: object) -> Callable[..., Any]:
    def given(completion):
        return value

    return given


def test_a_score_and_an_array_are_values_too() -> None:
    def scored(completion):
        return Score(0.5, metrics={"length": 2.0})

    def array(completions):
        return np.array([1.0, 2.0])

    assert totals(scored, array) == [1.5, 2.5]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("yes", "returned 'yes' (str): it must return a number, such as 1.0, or True or False"),
        (None, "returned None: it must return a number"),
        (float("nan"), "returned nan: it must return a finite number"),
        (10**400, "returned a whole number that is too large"),
        ([1.0], "returned [1.0] (list): it must return a number"),
        (np.ones(1), "returned array([1.]) (ndarray): it must return a number"),
    ],
)
def test_a_wrong_value_names_the_function_its_line_and_what_is_right(value, said) -> None:
    found = totals(lambda_of(value))
    line = lambda_of(value).__code__.co_firstlineno
    assert found[0] == found[1]
    assert found[0].startswith(f"the reward: given (test_function_forms.py, line {line}) {said}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.0, "returned 1.0 (float): it must return a list of 2 numbers"),
        ([1.0], "returned 1 values: it must return a list of 2 numbers"),
        (np.ones((2, 1)), "returned an array of shape [2, 1]: it must return a list of 2 numbers"),
        ([1.0, "a"], "returned 'a' (str) at place 1: it must return a list of numbers"),
        ([1.0, float("nan")], "returned nan at place 1: it must return a finite number"),
        (None, "returned None: it must return a list of 2 numbers"),
        ({1.0, 2.0}, "(set): it must return a list of 2 numbers"),
    ],
)
def test_a_wrong_list_says_what_is_right(value, said) -> None:
    def group(completions):
        return value

    assert all(said in error for error in totals(group))


def test_an_exception_names_the_line_of_the_user(tmp_path, capsys) -> None:
    path = tmp_path / "own.py"
    path.write_text("import json\n\n\ndef parsed(completion):\n    return json.loads('{')\n")
    error = totals(function_of(str(path), "", "parsed"))[0]
    assert error.startswith("the reward: JSONDecodeError: ")
    assert error.endswith("(own.py, line 5, in parsed)")
    assert f'File "{path}", line 5, in parsed' in capsys.readouterr().err


def test_a_prompt_without_the_column_has_no_reward() -> None:
    def of_colour(completion, colour):
        return 1.0

    error = totals(of_colour)[0]
    assert "of_colour (test_function_forms.py" in error and "needs 'colour', which prompt" in error
    assert "known: completion, level, metadata, prompt, reference, tokens, topic" in error


def filtered(function: Callable[..., Any], rewards: tuple[float, ...] = (1.0, 0.0)) -> str | None:
    signature = signature_of(function, function.__name__, "filter", "f.py")
    group = replace(make_group(rewards), prompt=PROMPT)
    return FunctionFilter(function, signature, "its_label").reject(group)


def test_a_filter_sees_the_group_and_returns_a_verdict() -> None:
    def mixed(rewards):
        return len(set(rewards)) > 1

    def levels(level, lengths, truncated, completions, pass_rate, prompt):
        assert len(lengths) == len(truncated) == len(completions) == 2 and pass_rate is None
        return f"level {level} of {prompt}"

    def silent(rewards):
        pass

    assert filtered(mixed) is None
    assert filtered(mixed, (1.0, 1.0)) == "its_label"
    assert filtered(levels) == "level 3 of 6*7="
    assert filtered(silent) is None
    for wrong in (0, "", 1.5, []):

        def other(rewards, wrong=wrong):
            return wrong

        with pytest.raises(ReturnedError, match="must return True or None to accept the group"):
            filtered(other)


def test_columns_are_checked_against_the_first_prompts(monkeypatch) -> None:
    from rlax_plugin.config import RewardChoice
    from rlax_plugin.reward.functions import checking as columns

    signature = Signature(
        "sample", False, ("completion", "levle"), ("other",), False, "f.py", 1, "f"
    )
    monkeypatch.setattr(columns, "checked_signature", lambda *given: signature)
    choices = [RewardChoice.model_validate({"function": "f.py:f"})]
    with pytest.raises(ConfigError) as caught:
        check_columns(choices, "reward", "rlax.rewards", {}, [PROMPT], (), 1.0)
    assert caught.value.key == "rlax.rewards.0.function"
    assert (
        "has a parameter 'levle', but the prompts have no such column; did you mean 'level'?"
        in str(caught.value)
    )
    with pytest.raises(ConfigError, match=r"rlax.prompt_source.metadata: \[\w.*levle\b.*keeps its"):
        check_columns(choices, "reward", "rlax.rewards", {}, [PROMPT], ("levle",), 1.0)
    named = replace(PROMPT, metadata={"levle": 1})
    check_columns(choices, "reward", "rlax.rewards", {}, [PROMPT, named], (), 1.0)


def test_a_failing_filter_of_the_user_ends_the_run_with_its_line(tmp_path) -> None:
    from rlax_plugin.run.controller.chosen import Chosen, ChosenFilter

    path = tmp_path / "bad_filter.py"
    path.write_text("def first(completions):\n    return completions[9] == ''\n")
    function = function_of(str(path), "", "first")
    part = FunctionFilter(function, signature_of(function, "first", "filter", "x"), "first")
    chosen = ChosenFilter(Chosen("rlax.curation.filters.0", "first", "a function", part))
    with pytest.raises(PluginError) as caught:
        chosen.reject(make_group((1.0, 0.0)))
    assert "rlax.curation.filters.0 = 'first': the function failed in reject" in str(caught.value)
    assert "(bad_filter.py, line 2, in first)" in str(caught.value)
