"""Splits, duplicates and lengths: every row is a prompt of one split, or counted with a reason."""

import pytest
from data_sets import Listed, listed, tables, tokenizer

from rlax_plugin.api import ConfigError, DatasetSource, PromptTable


def questions(count: int) -> list[dict[str, str]]:
    return [{"question": f"What is {n}?", "answer": str(n)} for n in range(count)]


def counts(table: PromptTable) -> dict[str, int]:
    return {reason: one.count for reason, one in table.skipped.items()}


def test_held_out_questions_are_in_one_split_whatever_else_is_there() -> None:
    shares = {"validation": 0.1, "test": 0.2}
    found = tables(listed(*questions(1000), held_out=shares))
    sizes = {split: len(table) for split, table in found.items()}
    assert sum(sizes.values()) == 1000
    assert 70 < sizes["validation"] < 130 and 150 < sizes["test"] < 250
    home = {prompt.text: split for split, table in found.items() for prompt in table}
    again = tables(listed(*questions(400)[::-1], held_out=shares))
    assert all(home[p.text] == split for split, table in again.items() for p in table)


def test_the_same_question_with_another_answer_stays_in_its_split() -> None:
    rows = [{"question": f"{n}?", "answer": a} for a in "ab" for n in range(200)]
    found = tables(listed(*rows, held_out={"test": 0.3}))
    texts = {split: {p.text for p in table} for split, table in found.items()}
    assert not texts["train"] & texts["test"] and len(found["test"]) == 2 * len(texts["test"])


def test_training_questions_that_a_split_asks_are_left_out() -> None:
    rows = questions(5)
    of = {"train": rows, "test": rows[3:]}
    found = tables(listed(of=of, splits={"train": "x", "test": "y"}))
    assert [p.text for p in found["train"]] == [row["question"] for row in rows[:3]]
    assert len(found["test"]) == 2 and counts(found["train"]) == {"in another split": 2}
    assert found["train"].skipped["in another split"].examples[0] == (
        "row 4",
        "its question is in split test, too",
    )


def test_duplicates_are_skipped_or_kept() -> None:
    rows = [*questions(3), {**questions(3)[1], "more": 1}, {**questions(3)[1], "answer": "other"}]
    found = tables(listed(*rows))["train"]
    assert len(found) == 4 and counts(found) == {"duplicate": 1}
    assert found.skipped["duplicate"].examples == [
        ("row 4", "has the question and the reference of an earlier row")
    ]
    kept = tables(listed(*rows, *rows[:1], duplicates="keep"))["train"]
    assert len(kept) == 6 and kept[0].id == kept[5].id and not kept.skipped


def test_prompts_that_are_too_long_are_counted() -> None:
    rows = [{"question": "x" * n} for n in (1, 10, 11, 12)]
    rows.append({"question": "y" * 1_000_000})  # is not even encoded
    found = tables(listed(*rows, limit=10))["train"]
    assert found.lengths.tolist() == [1, 10] and counts(found) == {"too long": 3}
    assert found.skipped["too long"].examples[0] == (
        "row 3",
        "its question has more than 10 tokens",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"test": "x"}}, "splits = ['test']: must have a split train"),
        (
            {"held_out": {"train": 0.1}},
            "held_out = {'train': 0.1}: must not name train: it is read from data of its own",
        ),
        (
            {"held_out": {"a": 0.4, "b": 0.2}},
            "held_out = {'a': 0.4, 'b': 0.2}: must sum to at most 0.5, and sums to 0.6",
        ),
        ({"held_out": {"../x": 0.1}}, "held_out = '../x': must be a name of letters, digits"),
        ({"question": "Q: {a.__class__}"}, "must have plain columns in its braces"),
        ({"question": "Q: {a!r}"}, "must have plain columns in its braces"),
        ({"question": "Q: {a[0].b}"}, "must have plain columns in its braces"),
        ({"question": "Q: {a[-1]}"}, "must have plain columns in its braces"),
        ({"question": "Q: {"}, "is no template"),
        ({"weights": {"a": 1}}, "needs domain, the column of domains"),
        ({"domain": "d", "weights": {"a": 0}}, "must not all be 0"),
    ],
)
def test_options_that_contradict_each_other(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        listed(**options)
    assert message in str(raised.value)


def test_weights_must_name_the_domains() -> None:
    rows = [{"question": f"{n}?", "kind": "ab"[n % 2]} for n in range(6)]
    with pytest.raises(ConfigError, match="no other; differs in 'b', 'c'"):
        tables(listed(*rows, domain="kind", weights={"a": 1, "c": 2}))


def test_a_chat_needs_a_template() -> None:
    wanted = listed(of={}).config.model_copy(update={"chat": True})
    with pytest.raises(ConfigError, match=r"chat = True: must be false: the tokenizer in"):
        Listed(wanted, tokenizer(), max_tokens=9)
    with pytest.raises(ConfigError, match="system = 'Hi': needs a chat, and this is none"):
        listed(of={}, system="Hi")


def test_a_split_without_prompts_is_an_error_with_a_reason() -> None:
    def said(source: DatasetSource, split: str = "train") -> str:
        source.prepare = tables
        with pytest.raises(ConfigError) as raised:
            source.prompts(split)
        return str(raised.value)

    start = "rlax.prompt_source.splits: split"
    assert said(listed(*questions(3), limit=1)) == (
        f"{start} 'train' has no prompts left: 3 too long, such as row 1: its question has more "
        "than 1 tokens"
    )
    assert said(listed()) == f"{start} 'train' has no prompts: the data set is empty"
    assert said(listed(*questions(1), held_out={"test": 1e-9}), "test") == (
        f"{start} 'test' has no prompts: raise its share in held_out"
    )
