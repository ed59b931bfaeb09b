"""Rows as demonstrations: which columns they have, which answers train, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_sets import jsonl, listed, tables, write_lines

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.tokens import chat

USER, ANSWER = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "Be brief."}
MORE = [{"role": "user", "content": "And 2+2?"}, {"role": "assistant", "content": "4"}]


def trained(source: Any, split: str = "train") -> list[list[str]]:
    """The texts of each row that train."""
    table = tables(source)[split]
    decode = source.tokenizer.decode
    return [
        [decode(table[row].tokens[b:e], special=True) for b, e in table.spans_at(row)]
        for row in range(len(table))
    ]


@pytest.mark.parametrize(
    ("turns", "answers"),
    [("all", ["2<|im_end|>", "4<|im_end|>"]), ("last", ["4<|im_end|>"])],
)
def test_messages_train_their_answers(turns: Any, answers: list[str]) -> None:
    source = listed({"messages": [SYSTEM, USER, ANSWER, *MORE]}, chat=True)
    assert trained(source.of_demonstrations(turns, 1000)) == [answers]


def test_a_completion_trains_and_its_prompt_does_not() -> None:
    rows = [
        {"prompt": [USER, ANSWER, MORE[0]], "completion": [MORE[1]]},
        {"prompt": "1+1?", "completion": "2"},
    ]
    source = listed(*rows, chat=True, system="Be kind.").of_demonstrations("all", 1000)
    assert trained(source) == [["4<|im_end|>"], ["2<|im_end|>"]]
    table = tables(source)["train"]
    text = source.tokenizer.decode(table[1].tokens, special=True)
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
    )


def test_without_a_chat_template_a_completion_continues_its_prompt() -> None:
    source = listed({"prompt": "1+1=", "completion": "2"}).of_demonstrations("all", 1000)
    assert trained(source) == [["2<|endoftext|>"]]
    assert tables(source)["train"][0].tokens[:4].tolist() == source.tokenizer.encode("1+1=")


def test_tools_reach_the_template_and_calls_need_no_content(tmp_path: Path) -> None:
    from small_tokenizers import byte_level

    from rlax_plugin.api import Tokenizer

    template = (
        "{% if tools %}[{{ tools[0].name }}]{% endif %}{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}!{{ m.tool_calls[0].name }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = Tokenizer.load(byte_level(tmp_path / "t", template=template), "tokenizer_path")
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    messages = [USER, call, {"role": "tool", "content": "2"}, ANSWER]
    path = write_lines(
        tmp_path / "tools.jsonl",
        [
            {"messages": messages, "tools": [{"name": "add"}]},
            {"messages": messages, "tools": '[{"name": "sub"}]'},
        ],
    )
    source = jsonl(path, tokens=tokenizer).of_demonstrations("all", 1000)
    assert trained(source) == [["!add<|im_end|>", "2<|im_end|>"]] * 2
    texts = [tokenizer.decode(prompt.tokens) for prompt in tables(source)["train"]]
    assert [text[:5] for text in texts] == ["[add]", "[sub]"]


def test_keys_that_a_table_fills_with_null_are_missing(tmp_path: Path) -> None:
    """Its calls have the arguments of all tools; those of JSON lines may be null."""
    import pyarrow as pa
    from pyarrow import parquet
    from rlax_datasets import ParquetConfig, ParquetSource
    from small_tokenizers import byte_level

    from rlax_plugin.api import Tokenizer

    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}"
        "{{ m.tool_calls[0].arguments | tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokens = Tokenizer.load(byte_level(tmp_path / "t", template=template), "tokenizer_path")
    rows = [
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"arguments": arguments}]}]}
        for arguments in ({"a": 1, "b": None}, {"a": None, "b": "x"})
    ]
    lines = jsonl(write_lines(tmp_path / "rows.jsonl", rows), tokens=tokens)
    written = trained(lines.of_demonstrations("all", 1000))
    assert written[0] == ['{"a": 1, "b": null}<|im_end|>']
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    config = ParquetConfig(path=str(tmp_path / "rows.parquet"))
    source = ParquetSource(config, tokens, max_tokens=1000).of_demonstrations("all", 1000)
    assert trained(source) == [['{"a": 1}<|im_end|>'], ['{"b": "x"}<|im_end|>']]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [USER]}, "has no answer"),
        ({"messages": [USER, ANSWER, USER]}, "ends with a message of the role 'user'"),
        ({"messages": [ANSWER, USER, ANSWER]}, "begins with the assistant"),
        ({"messages": "1+1?"}, "not a list of messages"),
        ({"messages": [USER, {"role": "assistant"}]}, "a message has a role and a content"),
        ({"messages": [USER, ANSWER], "tools": "add"}, "a text in 'tools' that is no JSON"),
        ({"messages": [USER, {"role": "assistant", "content": "\n2"}]}, "before message 2"),
    ],
)
def test_a_row_that_is_no_demonstration_is_named(row: dict[str, Any], message: str) -> None:
    good = {"messages": [USER, ANSWER], "tools": None}
    source = listed(good, row, chat=True).of_demonstrations("all", 1000)
    with pytest.raises(ConfigError, match=f"row 2 .*{message}.*broken: skip"):
        tables(source)
    skipping = listed(good, row, chat=True, broken="skip").of_demonstrations("all", 1000)
    assert trained(skipping) == [["2<|im_end|>"]]
    assert tables(skipping)["train"].skipped["broken"].count == 1


def test_a_conversation_that_the_assistant_begins_trains_its_last_answer() -> None:
    source = listed({"messages": [ANSWER, USER, ANSWER]}, chat=True)
    assert trained(source.of_demonstrations("last", 1000)) == [["2<|im_end|>"]]


@pytest.mark.parametrize(
    "first",
    [
        {"messages": None, "prompt": "1+1?", "completion": "2"},
        {"messages": [USER, ANSWER], "prompt": None, "completion": None},
    ],
)
def test_the_columns_that_the_first_row_fills_are_read(first: dict[str, Any]) -> None:
    source = listed(first, chat=True).of_demonstrations("all", 1000)
    assert trained(source) == [["2<|im_end|>"]]


def test_other_columns_and_options_of_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"question: demonstr.*there are: 'answer', 'question'"):
        tables(listed({"question": "1", "answer": "2"}, chat=True).of_demonstrations("all", 99))
    named = listed({"talk": [USER, ANSWER]}, chat=True, question="talk")
    assert trained(named.of_demonstrations("all", 99)) == [["2<|im_end|>"]]
    with pytest.raises(ConfigError, match=r"prompt_source.reference = 'a': is of prompts"):
        listed({"messages": [USER, ANSWER]}, chat=True, reference="a").of_demonstrations("all", 9)


def test_long_ones_are_counted_and_the_first_messages_decide_the_split() -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": a}]}
        for n in range(40)
        for a in ("yes", "y" * 500)
    ]
    source = listed(*rows, chat=True, held_out={"validation": 0.3}).of_demonstrations("all", 100)
    found = tables(source)
    counts = {split: len(table) for split, table in found.items()}
    assert counts["train"] + counts["validation"] == 40
    assert 4 < counts["validation"] < 25
    assert sum(table.skipped["too long"].count for table in found.values()) == 40


def test_a_conversation_longer_than_a_row_is_too_long_whatever_else_it_is() -> None:
    """Its beginnings, of which one is refused, are not looked at."""
    broken = [USER, {"role": "assistant", "content": "\n2"}, *MORE]
    long = [*broken, USER, {"role": "assistant", "content": "y" * 500}]
    rows = ({"messages": [USER, ANSWER]}, {"messages": long})
    source = listed(*rows, chat=True).of_demonstrations("all", 100)
    table = tables(source)["train"]
    assert (len(table), table.skipped["too long"].count) == (1, 1)


def test_the_time_limit_grows_with_the_answers(monkeypatch: Any) -> None:
    limits_s: list[float] = []
    real = chat.rendered_turns

    def rendered_turns(template: Any, messages: Any, turns: Any, tools: Any, *limits: Any) -> Any:
        limits_s.append(limits[0])
        return real(template, messages, turns, tools, *limits)

    monkeypatch.setattr(chat, "rendered_turns", rendered_turns)
    source = listed({"messages": [USER, ANSWER, *MORE]}, chat=True)
    assert len(trained(source.of_demonstrations("all", 1000))) == 1
    assert limits_s == [3 * source.tokenizer.chat.limits.render_s]


def test_the_reading_process_prepares_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_lines(tmp_path / "mine.jsonl", [{"messages": [USER, ANSWER, *MORE]}])
    both = {}
    for turns in ("all", "last"):
        source = jsonl(path, chat=True).of_demonstrations(turns, 1000)
        both[turns] = source.prompts("train")
    assert [len(table.spans_at(0)) for table in both.values()] == [2, 1]
    assert both["all"].digest != both["last"].digest
