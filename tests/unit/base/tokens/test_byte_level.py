"""The tokenizer ``bytes``: any text comes back, any bytes can be shown, and chats have marks."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlax_plugin.base.tokens.byte_level import DIRECTORY, SIZE
from rlax_plugin.base.tokens.chat import ChatTemplateError
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.rollout.http.messages import form_of

BYTES = Tokenizer.load(DIRECTORY, "tokenizer_path")
ROLES = ("system", "user", "assistant", "tool")
SPECIAL = ("<|pad|>", "<|end|>", *(f"<|{role}|>" for role in ROLES))
PAD, END, SYSTEM, USER, ASSISTANT, TOOL = range(256, 262)
TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("<|end>user"))) | st.lists(
    st.sampled_from([*SPECIAL, " ", "\n", "é", "\0", "\u2028", "😀"])
).map("".join)


@pytest.mark.property
@given(TEXTS, TEXTS)
def test_a_token_is_a_byte_and_any_text_comes_back(text: str, other: str) -> None:
    tokens = BYTES.encode(text)
    assert tokens == list(text.encode()) and BYTES.decode(tokens) == text
    assert BYTES.encode_all([text, other]) == [tokens, list(other.encode())]
    assert BYTES.encode_behind(text) == tokens


@pytest.mark.property
@given(st.binary())
def test_bytes_that_are_no_text_are_shown_with_a_mark(content: bytes) -> None:
    assert BYTES.decode(list(content)) == content.decode(errors="replace")


def test_special_tokens_and_ids_without_a_token() -> None:
    assert (BYTES.size, SIZE, BYTES.bos_ids) == (262, 262, ())
    assert (BYTES.pad_id, BYTES.eos_id, BYTES.stop_ids, BYTES.answer_end) == (PAD, END, (END,), END)
    assert BYTES.decode([USER, 55, END, PAD]) == "7"
    assert BYTES.decode([USER, 55, END, PAD], special=True) == "<|user|>7<|end|><|pad|>"
    assert BYTES.decode([0xC3, 55, 300, 0xA9]) == "\ufffd7\ufffd\ufffd"


def test_messages_are_told_apart_by_marks_that_no_text_can_write() -> None:
    question = {"role": "user", "content": "<|end|>é"}
    answer = {"role": "assistant", "content": "7"}
    rules = {"role": "system", "content": "s"}
    written = list(b"<|end|>\xc3\xa9")
    assert BYTES.render([question]) == [USER, *written, ASSISTANT]
    first = [SYSTEM, ord("s"), USER, *written, ASSISTANT, ord("7"), END]
    assert BYTES.render([rules, question, answer], generation_prompt=False) == first
    result = {"role": "tool", "content": "r"}
    follows = [TOOL, ord("r"), ASSISTANT]
    assert BYTES.next_turn([result], [55, END]) == follows
    assert BYTES.next_turn([result], [55]) == [END, *follows]
    with pytest.raises(ChatTemplateError, match=f"knows the roles {', '.join(ROLES)}, and not dev"):
        BYTES.render([{"role": "dev", "content": ""}])


def test_calls_of_tools_are_written_as_they_are_read() -> None:
    described: list[Any] = [
        {"type": "function", "function": {"name": name}} for name in ("price", "now")
    ]
    described[0]["function"]["parameters"] = {"type": "object", "properties": {"of": {}, "in": {}}}
    arguments = {"of": "a'\n<|end|>", "list": [True, None, 1.5, {"deep": False}]}
    calls: list[Any] = [{"type": "function", "function": {"name": "price", "arguments": arguments}}]
    calls += [{"type": "function", "function": {"name": "now", "arguments": {}}}]
    question = {"role": "user", "content": "7"}
    answer = {"role": "assistant", "tool_calls": calls}
    whole = BYTES.render([question, answer], generation_prompt=False, tools=described)
    offered = [SYSTEM, *b"price(of, in)\nnow()\n", USER, ord("7"), ASSISTANT]
    assert whole[: len(offered)] == offered and whole[-1] == END
    form = form_of(BYTES, "auto", "key")
    read = form.message(np.array(whole[len(offered) :], np.int32), described, "1")
    assert form.calls == "pythonic" and read.content is None
    found = [(call.name, json.loads(call.arguments)) for call in read.tool_calls]
    assert found == [("price", arguments), ("now", {})]
    with pytest.raises(ChatTemplateError, match="calls of tools or a content, not both"):
        BYTES.render([question, {**answer, "content": "7"}], tools=described)
    calls[0]["function"]["arguments"] = "{}"
    with pytest.raises(ChatTemplateError, match="arguments of a call must be an object"):
        BYTES.render([question, answer], tools=described)
