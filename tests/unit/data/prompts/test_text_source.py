"""What authors of text sources get: prompts, ids, right answers, and the model's tokenizer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_tokenizers import DATED, END, byte_fallback, byte_level

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    TextRow,
    TextSource,
    Tokenizer,
    model_tokenizer,
)
from rlax_plugin.config import Deadlines

ROWS = {
    "train": [
        TextRow("Largest of 3, 5:", " 5", {"numbers": [3, 5]}),
        TextRow("Largest of 3, 5:", " 5", {"numbers": [5, 3]}),
        TextRow("Largest of 9, 5:", "9", answer=" 9"),
    ],
    "test": [TextRow([{"role": "user", "content": "1"}, {"role": "tool", "content": "2"}], "3")],
}


class Riddles(TextSource):
    splits = ("train", "test")

    def rows(self, split: str) -> list[TextRow]:
        return ROWS[split]


def tokenizer(directory: Path, make: Any = byte_level) -> Tokenizer:
    return Tokenizer.load(make(directory), "tokenizer_path")


def test_completion_prompts_and_right_answers(tmp_path: Path) -> None:
    words = tokenizer(tmp_path, byte_fallback)
    source = Riddles(words, stop_strings=("\n",))
    one, other, third = source.prompts("train")
    assert one.tokens.tolist() == [*words.bos_ids, *words.encode(one.text)]
    assert one.tokens.dtype == np.int32 and source.encode(one.text) == one.tokens.tolist()
    assert len({one.id, other.id, third.id}) == 3  # metadata is a part of what a prompt is
    assert [p.id for p in Riddles(words).prompts("train")] == [one.id, other.id, third.id]
    for prompt, answer in ((third, " 9\n"), (one, " 5\n")):
        row = [*prompt.tokens.tolist(), *source.answer_tokens(prompt).tolist()]
        assert source.decode(np.array(row)) == prompt.text + answer


def test_chat_prompts_and_right_answers(tmp_path: Path) -> None:
    words = tokenizer(tmp_path)
    source = Riddles(words, chat=True, system="Be brief.")
    prompt = source.prompts("train")[2]
    system = {"role": "system", "content": "Be brief."}
    asked = [system, {"role": "user", "content": "Largest of 9, 5:"}]
    assert prompt.tokens.tolist() == words.render(asked) == source.encode(prompt.text)
    assert source.answer_tokens(prompt).tolist() == [*words.encode(" 9"), words.answer_end]
    (several,) = source.prompts("test")
    messages = ROWS["test"][0].question
    assert several.tokens.tolist() == words.render([system, *messages])
    assert several.text == "user: 1\ntool: 2" and several.metadata["messages"] == messages
    assert prompt.id != Riddles(words).prompts("train")[2].id


def test_messages_of_an_environment(tmp_path: Path) -> None:
    words = tokenizer(tmp_path)
    source, messages = Riddles(words, chat=True), [{"role": "tool", "content": "7"}]
    after = np.array([5, words.answer_end], np.int32)
    assert source.encode_messages(messages, after) == words.next_turn(messages, after)
    assert source.encode_messages(messages, None) == words.render(messages)
    assert END not in source.decode(np.array(source.encode_given("7")))


def test_a_chat_template_that_writes_today_needs_a_date(tmp_path: Path) -> None:
    directory = byte_level(tmp_path, template=DATED)
    undated = Tokenizer.load(directory, "tokenizer_path")
    assert Riddles(undated).prompts("train")  # no chat
    with pytest.raises(ConfigError, match=r"template_arguments: must have date_string, such as"):
        Riddles(undated, chat=True)
    dated = Tokenizer.load(directory, "tokenizer_path", {"date_string": "26 Jul 2024"})
    prompt = Riddles(dated, chat=True).prompts("train")[0]
    assert dated.decode(prompt.tokens).startswith("Today: 26 Jul 2024")


def test_an_unknown_split_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'validation': no such split; known: test, train"):
        Riddles(tokenizer(tmp_path)).prompts("validation")


def test_the_models_tokenizer(tmp_path: Path) -> None:
    section = SimpleNamespace(deadlines=Deadlines(template_s=3, startup_s=40))

    def context(**maxtext: str) -> BuildContext:
        return BuildContext(tmp_path, 0, section, SimpleNamespace(maxtext=maxtext))  # pyright: ignore

    path = str(byte_level(tmp_path))
    found = model_tokenizer(context(tokenizer_path=path, tokenizer_type="huggingface"))
    assert found.directory == tmp_path
    assert (found.chat.limits.render_s, found.chat.limits.start_s) == (3, 40)
    with pytest.raises(ConfigError, match=r"tokenizer_path: must be the directory"):
        model_tokenizer(context())
    with pytest.raises(ConfigError, match=r"tokenizer_type: must be huggingface"):
        model_tokenizer(context(tokenizer_path=path))
