"""Answers of a chat in the parts that OpenAI's API has, and the messages that clients send back.

A chat template writes reasoning and calls of tools in a form of its own, and a policy samples them
in this form. The form is not looked up by a model's name: the template is asked to write a call,
and the parser that reads this call back is the one for its answers.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Literal, get_args

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line, storable
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.base.tokens.stopping import cut
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.rollout.http.policy import AssistantMessage, Refused, ToolCall

CallForm = Literal["hermes", "llama3", "pythonic"]
"""How a call of a tool is written in an answer.

``hermes``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes 2 Pro, Qwen 2.5 and
3), behind a content or without one. ``llama3``: ``{"name": ..., "parameters": {...}}``, several of
them with ``;`` between them, and nothing else (Llama 3.1 to 3.3). ``pythonic``: ``[f(a=1), g()]``
and nothing else (Llama 3.2 and 4; Gemma 3 with a template that asks for it).
"""

_THINK, _THOUGHT, _CALL, _CALLED = "<think>", "</think>", "<tool_call>", "</tool_call>"
_PROBE = {"name": "probe7", "arguments": {"a7": "b7"}}
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe7",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"a7": {"type": "string"}}},
    },
}
_QUESTION = {"role": "user", "content": "question"}
_EXCERPT = 100  # characters of a value that is refused
_LONGEST_TOKEN = 256  # characters of a token, of a prompt source that names no tokenizer
_DEEPEST = 64  # levels of lists and objects in a message; Python's own limit depends on the caller
_SPACE = re.compile(r"[ \t\n\r]*")

_Call = tuple[str, str]
"""Name and arguments, a JSON text."""


class _MalformedError(ValueError):
    """A text is no call."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the answers of a model are written; see ``form_of``.

    Attributes:
      decode: text of tokens, with marks such as ``<tool_call>``, without other special tokens.
      calls: None: calls of tools are not recognised.
      thinks: True if ``<think>`` at the beginning of an answer opens its reasoning.
      opened: True if the template's beginning of an answer opens it already.
      why_no_tools: the reason why requests with tools are refused; "" if they are not.
    """

    decode: Callable[[np.ndarray], str]
    calls: CallForm | None = None
    thinks: bool = False
    opened: bool = False
    why_no_tools: str = ""

    def check(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Checks, before a request is answered, that its answer could be read.

        Raises:
          Refused: it has tools, and the form of their calls is not known.
        """
        if tools and self.why_no_tools:
            raise Refused(f"tools: {self.why_no_tools}", param="tools")

    def message(
        self,
        tokens: np.ndarray,
        tools: Sequence[Mapping[str, Any]],
        ids: str,
        stop_strings: Sequence[str] = (),
    ) -> AssistantMessage:
        """Returns the message of a sampled answer.

        A call that is not exactly of the form, such as one that was cut, or whose arguments are
        nested too deeply, stays content, and so do all calls beside it. Without tools there are
        no calls.

        Args:
          tokens: int32 [length], the stop token included.
          tools: of the request.
          ids: unique in the conversation; the calls are ``call_<ids>_0`` and so on.
          stop_strings: texts before which the answer ends.
        """
        text = storable(cut(self.decode(tokens), stop_strings))
        reasoning, content = self._thought(text)
        found = self._called(content, tools)
        if found is None:
            return AssistantMessage(content, reasoning)
        content, calls = found
        numbered = tuple(ToolCall(f"call_{ids}_{i}", *call) for i, call in enumerate(calls))
        return AssistantMessage(content.strip() or None, reasoning, numbered)

    def attempts_call(self, message: AssistantMessage) -> bool:
        """True if a message without calls has the mark of one: its calls are malformed.

        Without marks an answer that is no call cannot be told from a malformed one.
        """
        said = message.content or ""
        return self.calls == "hermes" and not message.tool_calls and _CALL in said

    def _thought(self, text: str) -> tuple[str | None, str]:
        """Splits reasoning from content."""
        begun = text.lstrip()
        if not self.thinks or not (self.opened or begun.startswith(_THINK)):
            return None, text
        begun = begun.removeprefix(_THINK)  # a model may write it although the template has
        reasoning, _, content = begun.partition(_THOUGHT)
        return reasoning.strip("\n") or None, content.lstrip("\n")

    def _called(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[_Call]] | None:
        """Splits content from calls; None if there are no well-formed ones."""
        if not tools or self.calls is None:
            return None
        try:
            content, calls = _PARSERS[self.calls](text)
        except _MalformedError:
            return None
        names = {tool["function"]["name"] for tool in tools}
        # Without marks, an answer that only looks like a call is told by the name.
        marked = self.calls == "hermes"
        if not calls or not (marked or all(name in names for name, _ in calls)):
            return None
        if any(_arguments(written) is None for _, written in calls):  # nobody could send it back
            return None
        return content, calls


def form_of(
    tokenizer: Tokenizer, calls: CallForm | Literal["auto", "none"], key: str
) -> AnswerForm:
    """Returns the form of a model's answers, which its chat template tells.

    Args:
      calls: "auto": the form in which the template writes a call; "none": calls stay content.
      key: config key of ``calls``, for messages.

    Raises:
      ConfigError: the template writes calls otherwise than ``calls`` says.
      ChatTemplateError: the template fails.
    """
    chat = tokenizer.chat
    if not chat.exists:
        return AnswerForm(tokenizer.decode)
    prompt = tokenizer.decode(tokenizer.render([_QUESTION]), special=True)
    thinks = _THOUGHT in chat.source
    opened = thinks and prompt.rstrip().endswith(_THINK)
    marks = [mark for mark in (_THINK, _THOUGHT, _CALL, _CALLED) if mark in chat.source]
    decode = _with_marks(tokenizer, marks)

    def form(calls: CallForm | None, why_no_tools: str = "") -> AnswerForm:
        return AnswerForm(decode, calls, thinks, opened, why_no_tools)

    if not chat.reads("tools"):
        return form(None, "the model's chat template does not read them")
    if calls == "none":
        return form(None)
    written = _written(tokenizer) if chat.reads("tool_calls") else None
    read = (
        [] if written is None else [one for one in get_args(CallForm) if _reads(form(one), written)]
    )
    if calls == "auto":
        if read:
            return form(read[0])
        choices = ", ".join(get_args(CallForm))
        why = f"how the model writes calls is not known: set {key} to {choices} or none"
        return form(None, why)
    if written is not None and calls not in read:
        shown = one_line(tokenizer.decode(written, special=True), _EXCERPT)
        raise ConfigError(key, calls, f"the chat template writes a call otherwise: {shown}")
    return form(calls)


def _written(tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of a call as the template writes them, behind its beginning of an answer."""
    call = {"id": "probe7abc", "type": "function", "function": _PROBE}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    before = tokenizer.render([_QUESTION], tools=[_PROBE_TOOL])
    whole = tokenizer.render([_QUESTION, answer], False, tools=[_PROBE_TOOL])
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))
    return np.array(whole[len(list(same)) :], np.int32)


def _reads(form: AnswerForm, written: np.ndarray) -> bool:
    found = form.message(written, [_PROBE_TOOL], "")
    calls = [(one.name, _arguments(one.arguments)) for one in found.tool_calls]
    return calls == [(_PROBE["name"], _PROBE["arguments"])] and not found.content


def _with_marks(tokenizer: Tokenizer, marks: Sequence[str]) -> Callable[[np.ndarray], str]:
    """Decodes as usual, but keeps marks that are special tokens, as in some vocabularies."""
    special = {one: mark for mark in marks if (one := tokenizer.special_id(mark)) is not None}
    if not special:
        return tokenizer.decode

    def decode(tokens: np.ndarray) -> str:
        places = [i for i, token in enumerate(tokens.tolist()) if token in special]
        begins, ends = [0, *(i + 1 for i in places)], [*places, len(tokens)]
        parts = [tokenizer.decode(tokens[a:b]) for a, b in zip(begins, ends, strict=True)]
        between = [special[int(tokens[i])] for i in places] + [""]
        return "".join(part + mark for part, mark in zip(parts, between, strict=True))

    return decode


# --- parsers: a text becomes its content and its calls -------------------------------------------


def _hermes(text: str) -> tuple[str, list[_Call]]:
    content, *blocks = text.split(_CALL)
    calls = []
    for block in blocks:
        body, end, behind = block.partition(_CALLED)
        if not end or behind.strip():
            raise _MalformedError
        call, place = _json_call(body, 0, ("arguments",))
        if body[place:].strip():
            raise _MalformedError
        calls.append(call)
    return content, calls


def _llama3(text: str) -> tuple[str, list[_Call]]:
    calls, place = [], 0
    while True:
        call, place = _json_call(text, place, ("parameters", "arguments"))
        calls.append(call)
        place = _behind_space(text, place)
        if place == len(text):
            return "", calls
        place = _expected(text, place, ";")


def _pythonic(text: str) -> tuple[str, list[_Call]]:
    try:
        found = ast.parse(text.strip(), mode="eval").body
        if not isinstance(found, ast.List) or not found.elts:
            raise _MalformedError
        return "", [_python_call(one) for one in found.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise _MalformedError from None


def _python_call(node: ast.expr) -> _Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise _MalformedError
    arguments = {one.arg: ast.literal_eval(one.value) for one in node.keywords}
    if len(arguments) < len(node.keywords) or None in arguments:
        raise _MalformedError
    text = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
    if json.loads(text) != arguments:  # such as a tuple, or keys that are no texts
        raise _MalformedError
    text.encode()  # raises a ValueError for half of a surrogate pair
    return node.func.id, text


_PARSERS: Mapping[CallForm, Callable[[str], tuple[str, list[_Call]]]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "pythonic": _pythonic,
}


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


_decode_json = json.JSONDecoder(parse_constant=_no_number).raw_decode


def _json_call(text: str, place: int, keys: Sequence[str]) -> tuple[_Call, int]:
    """Reads ``{"name": ..., <one of the keys>: {...}}``; returns it, and the place behind it."""
    found: dict[str, tuple[Any, str]] = {}
    place = _expected(text, place, "{")
    try:
        while True:
            place = _behind_space(text, place)
            name, place = _decode_json(text, place)
            place = _behind_space(text, _expected(text, place, ":"))
            value, end = _decode_json(text, place)
            if not isinstance(name, str) or name in found:
                raise _MalformedError
            found[name] = value, text[place:end]
            place = _behind_space(text, end)
            if text[place : place + 1] != ",":
                break
            place += 1
    except (ValueError, RecursionError):
        raise _MalformedError from None
    place = _expected(text, place, "}")
    name, _ = found.pop("name", ("", ""))
    key = next(iter(found), "")
    if not isinstance(name, str) or not name or len(found) != 1 or key not in keys:
        raise _MalformedError
    arguments, written = found[key]
    if not isinstance(arguments, dict):
        raise _MalformedError
    return (storable(name), written), place


def _behind_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _expected(text: str, place: int, character: str) -> int:
    place = _behind_space(text, place)
    if text[place : place + 1] != character:
        raise _MalformedError
    return place + 1


# --- what clients send back ----------------------------------------------------------------------


def check_length(
    parts: Iterable[Mapping[str, Any] | str], source: PromptSource, most_tokens: int, field: str
) -> None:
    """Checks, before anything is compared or encoded, that texts or messages could fit.

    Args:
      parts: all texts, messages and tools together.
      most_tokens: that they may have as tokens.
      field: name of the parts.

    Raises:
      Refused: even of the longest tokens there would be too many.
    """
    longest = source.tokenizer.longest_token if source.tokenizer else _LONGEST_TOKEN
    characters, most = 0, most_tokens * longest
    for part in parts:  # it ends early, for there may be millions
        characters += len(str(part))
        if characters > most:
            reason = f"{field}: of more than {characters - 1} characters, only {most} could fit"
            code = "context_length_exceeded"
            raise Refused(f"{reason} into {most_tokens} tokens", param=field, code=code)


def check_depth(value: Any, field: str) -> None:
    """Refuses a value that is nested too deeply to be compared and rendered.

    Raises:
      Refused: so it is; with the field's name.
    """
    if _is_deeper(value, _DEEPEST):
        reason = f"{field} is nested deeper than {_DEEPEST} levels"
        raise Refused(reason, param=field)


def _is_deeper(value: Any, most: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return not most or any(_is_deeper(one, most - 1) for one in inner)


def for_template(message: Message, where: str) -> dict[str, Any]:
    """Returns a client's message as chat templates read it.

    The arguments of calls, a JSON text in OpenAI's API, become an object; ``reasoning`` becomes
    ``reasoning_content``; and an assistant's content that is missing becomes "".

    Args:
      where: the message's name in the request, such as ``messages[2]``.

    Raises:
      Refused: it is no message of OpenAI's API.
    """
    check_depth(message, where)
    found = {key: value for key, value in message.items() if value is not None}
    reasoning = found.pop("reasoning", None)
    if reasoning is not None:
        found.setdefault("reasoning_content", reasoning)
    if not isinstance(found.get("role"), str):
        raise Refused(f"{where}.role must be a text", param=f"{where}.role")
    calls = found.pop("tool_calls", None)
    if calls:
        if found["role"] != "assistant" or not isinstance(calls, list):
            field = f"{where}.tool_calls"
            raise Refused(f"{field} must be a list, in a message of the assistant", param=field)
        found["tool_calls"] = [
            _call_for_template(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    if found["role"] == "assistant":
        found.setdefault("content", "")
    for key in ("content", "reasoning_content"):
        if not isinstance(found.get(key, None if key == "content" else ""), str):
            raise Refused(f"{where}.{key} must be a text", param=f"{where}.{key}")
    return found


def _call_for_template(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} must have a function with a name", param=where)
    arguments = _arguments(function.get("arguments"))
    if arguments is None:
        field = f"{where}.function.arguments"
        raise Refused(
            f"{field} must be the JSON text of an object, of at most {_DEEPEST} levels", param=field
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(text: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _is_deeper(found, _DEEPEST) else None


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a message is compared.

    Attributes:
      core: hash of role, content and calls: names, and the values of arguments as JSON has them,
        in which 1.0 is 1. Ids of calls are not in that of an assistant's message.
      reasoning: None: there is none.
      ids: of the calls.
    """

    core: bytes
    reasoning: str | None = None
    ids: tuple[str, ...] = ()

    def repeats(self, answer: Signature) -> bool:
        """True if a message says what an answer said; most clients leave out its reasoning."""
        return self.core == answer.core and self.reasoning in (None, answer.reasoning)

    def says(self, other: Signature) -> bool:
        """True if two messages of clients say the same."""
        return (self.core, self.reasoning) == (other.core, other.reasoning)


def signature_of(message: Message) -> Signature:
    """Returns the signature of a message that ``for_template`` returned."""
    core = {key: value for key, value in message.items() if key != "reasoning_content"}
    calls = message.get("tool_calls", ())
    if calls:
        core["tool_calls"] = [
            [call["function"]["name"], call["function"]["arguments"]] for call in calls
        ]
    ids = tuple(str(call.get("id", "")) for call in calls)
    return Signature(_hash(core), message.get("reasoning_content"), ids)


def signature_of_answer(answer: AssistantMessage) -> Signature:
    """Returns the signature that a message has which repeats an answer."""
    core: dict[str, Any] = {"role": "assistant", "content": answer.content or ""}
    if answer.tool_calls:
        core["tool_calls"] = [[one.name, _arguments(one.arguments)] for one in answer.tool_calls]
    return Signature(_hash(core), answer.reasoning, tuple(one.id for one in answer.tool_calls))


def _hash(value: Any) -> bytes:
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()


def _canonical(value: Any) -> Any:
    """JavaScript and others write 1.0 as 1."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(one) for key, one in value.items()}
    return [_canonical(one) for one in value] if isinstance(value, list | tuple) else value
