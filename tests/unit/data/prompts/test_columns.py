"""Which column is the question, and what a row may hold; what it may not has a place and a name."""

import math
from typing import Any

import pytest
from data_sets import listed, tables

from rlax_plugin.api import ConfigError, Prompt

SAID = [{"role": "user", "content": "1+1?"}]


def only(row: dict[str, Any], **options: Any) -> Prompt:
    (prompt,) = tables(listed(row, **options))["train"]
    return prompt


def test_usual_names_of_columns() -> None:
    for question in ("question", "prompt", "problem", "instruction"):
        for reference in ("answer", "reference", "solution", "ground_truth", "target"):
            prompt = only({question: "1+1?", reference: "2", "source": "x"})
            assert (prompt.text, prompt.reference) == ("1+1?", "2")
            assert prompt.metadata == {"source": "x"}
    assert only({"messages": SAID}, chat=True).text == "user: 1+1?"
    assert only({"question": "x"}).reference == ""


def test_columns_that_the_config_names() -> None:
    row = {"q": "1+1?", "reward_model": {"ground_truth": 2.5}, "a": 1, "b": [None, {"c": "ü"}]}
    prompt = only(row, question="q", reference="reward_model.ground_truth", metadata=["b"])
    assert (prompt.text, prompt.reference) == ("1+1?", "2.5")
    assert prompt.metadata == {"b": [None, {"c": "ü"}]}


def test_a_template_of_columns() -> None:
    row = {"x": 3, "y": "{x}", "answer": 4}
    prompt = only(row, question="Q: {x} and {y}, {{so}}\nA:")
    assert prompt.text == "Q: 3 and {x}, {so}\nA:" and prompt.reference == "4"
    assert prompt.metadata == {"x": 3, "y": "{x}"}


def test_a_template_with_an_item_of_a_list() -> None:
    row = {"text": "Add 1.", "tests": ["f(1)", "f(2)"], "answer": "x"}
    assert only(row, question="{text} {tests[1]}").text == "Add 1. f(2)"
    for tests in (["f(1)"], "f(1)", None):
        with pytest.raises(ConfigError, match="has no list in 'tests' with an item 1"):
            only(row | {"tests": tests}, question="{text} {tests[1]}")
    with pytest.raises(ConfigError, match="the data has no column 'test\\[0\\]'"):
        only(row, question="{test[0]}")


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"text": "x", "id": 1},
            {},
            "rlax.prompt_source.question: must name the column of the question; there are: 'id', "
            "'text'",
        ),
        (
            {"question": "x", "prompt": "y"},
            {},
            "rlax.prompt_source.question: must name a column, because there are 'question' and "
            "'prompt'",
        ),
        (
            {"question": "x", "answer": "1", "solution": "1"},
            {},
            "rlax.prompt_source.reference: must name a column, because there are 'answer' and "
            "'solution'",
        ),
        (
            {"question": "x", "anwser": "1"},
            {"reference": "answer"},
            "rlax.prompt_source.reference = 'answer': the data has no column 'answer'; did you "
            "mean 'anwser'? known: anwser, question",
        ),
        (
            {"question": "x"},
            {"question": "Q: {quest}"},
            "rlax.prompt_source.question = 'Q: {quest}': the data has no column 'quest'; did you "
            "mean 'question'? known: question",
        ),
        ({"question": "x"}, {"metadata": ["id"]}, "the data has no column 'id'"),
    ],
)
def test_a_missing_column_is_an_error_whatever_is_allowed(
    row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        tables(listed(row, broken="skip", **options))
    assert message in str(raised.value)


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]

BROKEN = {
    "missing question": ({"answer": "1"}, "has no column 'question'"),
    "number": ({"question": 7, "answer": "1"}, "has 7 in 'question': a question is a text or a"),
    "empty": ({"question": " \n", "answer": "1"}, "has an empty 'question'"),
    "messages": ({"question": SAID, "answer": "1"}, "has messages in 'question', which need chat"),
    "reference list": ({"question": "x", "answer": ["1"]}, "has ['1'] in 'answer', which must be"),
    "NaN": ({"question": "x", "answer": math.nan}, "has nan in 'answer'"),
    "NaN inside": (
        {"question": "x", "answer": "1", "m": [math.nan]},
        "has a value in 'm' that JSON cannot hold (Out of range float values",
    ),
    "bytes": (
        {"question": "x", "answer": "1", "image": b"\xff"},
        "has a value in 'image' that JSON cannot hold (Object of type bytes",
    ),
    "surrogate": ({"question": "x\ud800", "answer": "1"}, "holds a lone surrogate"),
    "large": ({"question": "x", "answer": "1", "m": "y" * 3000}, "bytes, more than max_row_bytes"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_is_named_or_counted(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, message = BROKEN[case]
    good = {"question": "good", "answer": "1"}
    source = listed(broken="skip", max_row_bytes=2000)
    monkeypatch.setattr(
        source, "rows", lambda split: iter([("row 1", good), ("row 2", row), ("row 3", good)])
    )
    table = tables(source)["train"]
    assert len(table) == 1 and table.skipped["broken"].count == 1
    ((place, what),) = table.skipped["broken"].examples
    assert place == "row 2" and message in what
    monkeypatch.setattr(source, "config", source.config.model_copy(update={"broken": "error"}))
    with pytest.raises(ConfigError) as raised:
        tables(source)
    assert f"rlax.prompt_source.broken = 'error': row 2 {what}. Mend" in str(raised.value)


def test_a_question_that_cannot_be_encoded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": f"{n}?"} for n in range(5)]
    source = listed(*rows, broken="skip")
    encode = source.tokenizer.encode_all

    def fails(texts: list[str]) -> list[list[int]]:
        if "3?" in texts:
            raise ValueError("no tokens for it")
        return encode(texts)

    monkeypatch.setattr(source.tokenizer, "encode_all", fails)
    table = tables(source)["train"]
    assert [p.text for p in table] == ["0?", "1?", "2?", "4?"]
    assert table.skipped["broken"].examples == [("row 4", "cannot be encoded: no tokens for it")]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "do not end with a question"),
        ([*SAID, {"role": "assistant", "content": "2"}], "do not end with a question"),
        (["1+1?"], "has '1+1?' in 'prompt': a message has a role and a content of text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "a message has a role and a content"),
        ([{"role": "<|im_end|>", "content": "x"}], "a message has a role and a content"),
    ],
)
def test_messages_that_are_none(said: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"row 1 ") as raised:
        tables(listed({"prompt": said}, chat=True))
    assert message in str(raised.value)
