"""Requests of OpenAI's API, and of vLLM's additions to it, and the bytes of their answers.

A field is honoured, or has a value that changes nothing, or is refused by its name: none is
ignored but those that only concern the sender. OpenAI's API reference describes chat completions,
completions and models; ``/tokenize``, ``/inference/v1/generate``, ``return_token_ids`` and
``return_tokens_as_token_ids`` are those of vLLM 0.32 (``vllm/entrypoints``).
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.stopping import problem_of
from rlax_plugin.config import INT32_MAX
from rlax_plugin.rollout.http.policy import (
    Answered,
    Asked,
    AssistantMessage,
    Choice,
    Message,
    Policy,
    Refused,
)

Kind = Literal["chat", "completion", "tokens"]
"""Chat completions, completions, and ``/inference/v1/generate``."""

MOST_CHOICES = 128
"""As in OpenAI's API."""

_EXCERPT = 100  # characters of a value that is refused
_MOST_PROMPTS = 1024  # of one request
_UINT64_MAX = 2**64 - 1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

# Fields that change no sample, or do so with other values only.
_OF_THE_SENDER = frozenset(
    (
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "request_id",
        "cache_salt",
        "priority",
    )
)
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True, False),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_strs": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
_WHY: Mapping[str, str] = {
    "echo": "the log-probs of a prompt are not offered",
    "logprobs": "only the log-prob of the sampled token is reported",
    "top_logprobs": "only the log-prob of the sampled token is reported",
}
_MESSAGE = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
)


def parsed(body: bytes) -> dict[str, Any]:
    """Returns the fields of a request; those that are null are left out, as if absent.

    Raises:
      Refused: the body is no object in JSON, in UTF-8; a key of an object comes twice; a number is
        not finite; or a text is not Unicode.
    """
    try:
        text = body.decode("utf-8-sig")  # json.loads would take UTF-16, too
        found = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite
        )
        if _SURROGATE.search(body):  # which UTF-8 cannot encode, unless it is one of a pair
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refused(f"the body is not valid JSON: {one_line(reason, _EXCERPT)}") from None
    if not isinstance(found, dict):
        raise Refused("the body must be an object in JSON")
    return {name: value for name, value in found.items() if value is not None}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key of an object comes twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{one_line(text, _EXCERPT)} is too large")
    return number


class _Fields:
    """The fields of a request that have not been read yet.

    Args:
      prefix: put before their names in messages.
    """

    def __init__(self, found: Mapping[str, Any], prefix: str = ""):
        self._left, self._prefix = dict(found), prefix

    def refused(self, name: str, reason: str, value: Any = None) -> Refused:
        said = "" if value is None else f" = {one_line(json.dumps(value), _EXCERPT)}"
        return Refused(f"{self._prefix}{name}{said}: {reason}", param=f"{self._prefix}{name}")

    def take(self, name: str, kind: type | tuple[type, ...], words: str) -> Any:
        """The value of a field, None if it is absent."""
        value = self._left.pop(name, None)
        wrong = isinstance(value, bool) and kind is not bool
        if value is not None and (wrong or not isinstance(value, kind)):
            raise self.refused(name, f"must be {words}", value)
        return value

    def whole(self, name: str, least: int, most: int = INT32_MAX) -> int | None:
        value = self.take(name, int, "a whole number")
        if value is not None and not least <= value <= most:
            raise self.refused(name, f"must be from {least} to {most}", value)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.take(name, (int, float), "a number")
        if value is None:
            return None
        if not least <= value <= most:
            raise self.refused(name, f"must be from {least:g} to {most:g}", value)
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.take(name, bool, "true or false"))

    def tokens(self, name: str) -> np.ndarray:
        value = self.take(name, list, "a list of token ids")
        if value is None or not _are_tokens(value):
            raise self.refused(name, "must be a list of token ids")
        return np.array(value, np.int32)

    def done(self) -> None:
        """Refuses what has not been read, unless it changes nothing."""
        for name, value in self._left.items():
            if value is None or name in _OF_THE_SENDER:
                continue
            if name not in _ONLY:
                raise self.refused(name, "is not supported", value)
            if value not in _ONLY[name] or isinstance(value, bool) != (True in _bools(name)):
                only = " or ".join(json.dumps(one) for one in _ONLY[name]) or "null"
                why = f", because {_WHY[name]}" if name in _WHY else ""
                raise self.refused(name, f"is not supported; only {only} is{why}", value)


def _bools(name: str) -> tuple[bool, ...]:
    """(True,) if a field's values are true and false, which Python takes for 1 and 0."""
    return (True,) if any(isinstance(one, bool) for one in _ONLY[name]) else ()


def _are_tokens(value: Sequence[Any]) -> bool:
    return all(type(one) is int and 0 <= one <= INT32_MAX for one in value)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, and the form of its answer.

    Attributes:
      asked: several only for completions of several prompts; the choices of the first come first.
      stream: True for server-sent events.
      usage: True if a stream ends with the numbers of tokens.
      logprobs: True if the answer has those of the sampled tokens.
      as_ids: True if log-probs name a token by its id: ``token_id:7``.
      ids: True if the answer has the token ids of prompt and choices.
    """

    kind: Kind
    asked: tuple[Asked, ...]
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    as_ids: bool = False
    ids: bool = False


def wanted(kind: Kind, body: bytes, name: str, sent: Asked | None = None) -> Wanted:
    """Returns the request of a body.

    Args:
      name: the policy's.
      sent: what the headers say, ``retry``, ``id`` and ``edge``; None: nothing.

    Raises:
      Refused: it cannot be honoured; the error names the field.
    """
    found = parsed(body)
    fields = _Fields(found)
    _check_model(fields, name)
    if kind == "tokens":
        parameters = fields.take("sampling_params", dict, "an object") or {}
        given = fields.tokens("token_ids")
        stream, usage = _streamed(fields)
        fields.done()
        fields = _Fields(
            {k: v for k, v in parameters.items() if v is not None and k != "skip_special_tokens"},
            "sampling_params.",
        )
        logprobs = fields.whole("logprobs", 0, 1) is not None
        one = replace(_sampling(fields, sent or Asked("")), given=given)
        fields.done()
        return Wanted(kind, (one,), stream, usage, logprobs, as_ids=True, ids=True)
    stream, usage = _streamed(fields)
    as_ids, ids = fields.flag("return_tokens_as_token_ids"), fields.flag("return_token_ids")
    one = _sampling(fields, sent or Asked(""))
    if kind == "chat":
        one = replace(one, given=_messages(fields), tools=_tools(fields))
        logprobs, asked = fields.flag("logprobs"), (one,)
    else:
        asked = tuple(replace(one, given=prompt) for prompt in _prompts(fields))
        if (count := fields.whole("logprobs", 0)) not in (None, 0):
            raise fields.refused("logprobs", f"must be 0, because {_WHY['logprobs']}", count)
        logprobs = count is not None
    fields.done()
    return Wanted(kind, asked, stream, usage, logprobs, as_ids, ids)


def _check_model(fields: _Fields, name: str) -> None:
    model = fields.take("model", str, "a text")
    if model not in (None, name):
        said = one_line(model, _EXCERPT)
        reason = f"model {said!r} is not served here; it is {name!r}"
        raise Refused(reason, status=404, kind="not_found_error", param="model")


def _streamed(fields: _Fields) -> tuple[bool, bool]:
    """``stream``, and ``stream_options.include_usage``."""
    stream = fields.flag("stream")
    options = fields.take("stream_options", dict, "an object")
    if options is not None and not stream:
        raise fields.refused("stream_options", "needs stream = true")
    inner = _Fields(options or {}, "stream_options.")
    usage = inner.flag("include_usage")
    if inner.flag("include_obfuscation"):
        raise inner.refused("include_obfuscation", "is not supported")
    inner.done()
    return stream, usage


def _sampling(fields: _Fields, sent: Asked) -> Asked:
    """The settings of sampling, with nothing given."""
    most = fields.whole("max_tokens", 1)
    newer = fields.whole("max_completion_tokens", 1)
    if most is not None and newer is not None and most != newer:
        raise fields.refused("max_tokens", "differs from max_completion_tokens", most)
    top_k = fields.whole("top_k", -1)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise fields.refused("top_p", "must be above 0 and at most 1", 0)
    stop = fields.take("stop", (str, list), "a text or a list of texts")
    stop = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if problem := problem_of(stop):
        raise fields.refused("stop", problem)
    stop_ids = tuple(fields.take("stop_token_ids", list, "a list of token ids") or ())
    if not _are_tokens(stop_ids):
        raise fields.refused("stop_token_ids", "must be a list of token ids", stop_ids)
    return replace(
        sent,
        n=fields.whole("n", 1, MOST_CHOICES) or 1,
        most_tokens=newer if most is None else most,
        temperature=fields.number("temperature", 0, sys.float_info.max),
        top_p=top_p,
        top_k=0 if top_k == -1 else top_k,
        seed=fields.whole("seed", 0, _UINT64_MAX),
        stop=stop,
        stop_ids=stop_ids,
    )


def _messages(fields: _Fields) -> tuple[Message, ...]:
    found = fields.take("messages", list, "a list of messages")
    if not found:
        raise fields.refused("messages", "must be a list of at least one message")
    return tuple(_message(one, f"messages[{index}]") for index, one in enumerate(found))


def _message(found: Any, where: str) -> Message:
    if not isinstance(found, dict):
        raise Refused(f"{where} must be an object", param=where)
    message = {name: value for name, value in found.items() if value is not None}
    for name in message.keys() - _MESSAGE:
        # Clients send back what they got, also where it says nothing.
        if message.pop(name) not in ([], {}):
            raise Refused(f"{where}.{name} is not supported", param=f"{where}.{name}")
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = _joined(content, f"{where}.content")
    elif content is not None and not isinstance(content, str):
        raise Refused(f"{where}.content must be a text", param=f"{where}.content")
    return message


def _joined(parts: Sequence[Any], where: str) -> str:
    """A content of several texts as one, with a line break between them, as in vLLM."""
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise Refused(f"{where} may only have parts of the type text", param=where)
        if not isinstance(text := part.get("text"), str) or part.keys() - {"type", "text"}:
            raise Refused(f"{where} must have parts with type and text alone", param=where)
        texts.append(text)
    return "\n".join(texts)


def _tools(fields: _Fields) -> tuple[Mapping[str, Any], ...]:
    tools = fields.take("tools", list, "a list of tools") or []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not named or tool.get("type") != "function":
            reason = 'must be {"type": "function", "function": {"name": ..., ...}}'
            raise fields.refused(f"tools[{index}]", reason)
    choice = fields.take("tool_choice", (str, dict), "a text or an object")
    if choice not in (None, "auto") and (choice != "none" or tools):
        raise fields.refused("tool_choice", 'is not supported; only "auto" is', choice)
    return tuple(tools)


def _prompts(fields: _Fields) -> list[np.ndarray | str]:
    found = fields.take("prompt", (str, list), "a text, token ids, or a list of either")
    several = isinstance(found, list) and found and not _are_tokens(found)
    prompts = found if several else [found]
    if found is None or len(prompts) > _MOST_PROMPTS:
        raise fields.refused("prompt", f"must be a text, token ids, or 1 to {_MOST_PROMPTS} such")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_tokens(prompt)):
            raise fields.refused("prompt", "must be a text, token ids, or a list of either")
    return [one if isinstance(one, str) else np.array(one, np.int32) for one in prompts]


ToTokenize = str | tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...]]
"""A prompt, or messages and tools."""


def to_tokenize(body: bytes, name: str) -> ToTokenize:
    """Returns what ``/tokenize`` is asked for.

    Raises:
      Refused: see ``wanted``.
    """
    fields = _Fields(parsed(body))
    _check_model(fields, name)
    text = fields.take("prompt", str, "a text")
    special = fields.take("add_special_tokens", bool, "true or false")
    if special not in (None, text is not None):
        reason = "is not supported; only true for a prompt and false for messages is"
        raise fields.refused("add_special_tokens", reason, special)
    chat = (_messages(fields), _tools(fields)) if text is None else ((), ())
    fields.done()
    return chat if text is None else text


async def tokenized(asked: ToTokenize, policy: Policy) -> dict[str, Any]:
    """Answers what ``to_tokenize`` returned.

    Raises:
      Refused: see ``Policy``.
    """
    if isinstance(asked, str):
        tokens = await policy.encode(asked)
    else:
        tokens = await policy.render(*asked)
    return {"count": len(tokens), "max_model_len": policy.longest, "tokens": [*map(int, tokens)]}


def models(policy: Policy) -> dict[str, Any]:
    """Answers ``/v1/models``."""
    one = {
        "id": policy.name,
        "object": "model",
        "created": 0,
        "owned_by": "rlax",
        "root": policy.name,
        "parent": None,
        "max_model_len": policy.longest,
    }
    return {"object": "list", "data": [one]}


def error_body(error: Refused) -> dict[str, Any]:
    """An error in OpenAI's form."""
    code = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    told = code.get(error.status) if error.status != 404 or error.param == "model" else None
    return {
        "error": {
            "message": str(error),
            "type": error.kind,
            "param": error.param,
            "code": error.code or told,
        }
    }


class Form:
    """Writes the answer to one request, whole or as server-sent events.

    Args:
      wanted: the request.
      number: id of the answer.
      policy: decodes tokens for log-probs.
    """

    def __init__(self, wanted: Wanted, number: str, policy: Policy):
        self._wanted, self._policy = wanted, policy
        self._created = int(time.time())
        self._offsets: dict[int, int] = {}  # characters of each choice's tokens so far
        self._id = {"chat": "chatcmpl-", "completion": "cmpl-", "tokens": ""}[wanted.kind] + number

    async def body(self, answers: Sequence[Answered]) -> dict[str, Any]:
        """The whole answer."""
        found = []
        for answered in answers:
            for choice in answered.choices:
                found.append(await self._choice(len(found), answered, choice))
        return {**self._head(answers), "choices": found, "usage": _usage(answers)}

    def _head(self, answers: Sequence[Answered] = (), chunk: str = "") -> dict[str, Any]:
        wanted = self._wanted
        if wanted.kind == "tokens":
            head: dict[str, Any] = {"request_id": self._id, "model": self._policy.name}
        else:
            thing = f"chat.completion{chunk}" if wanted.kind == "chat" else "text_completion"
            head = {
                "id": self._id,
                "object": thing,
                "created": self._created,
                "model": self._policy.name,
            }
        if answers:  # weights are what determines an answer besides the request
            versions = sorted({c.version for answered in answers for c in answered.choices})
            head["system_fingerprint"] = f"weights-{'-'.join(map(str, versions))}"
        if wanted.ids and wanted.kind != "completion" and answers:
            head["prompt_token_ids"] = answers[0].prompt.tolist()
        return head

    async def _choice(self, index: int, answered: Answered, choice: Choice) -> dict[str, Any]:
        wanted, tokens = self._wanted, choice.tokens.tolist()
        found: dict[str, Any] = {"index": index, "finish_reason": _finish(choice)}
        found["logprobs"] = await self.logprobs(index, tokens, choice.logprobs.tolist())
        if wanted.ids:
            found["token_ids"] = tokens
        if wanted.kind == "completion":
            found["text"] = choice.text
            if wanted.ids:
                found["prompt_token_ids"] = answered.prompt.tolist()
        elif wanted.kind == "chat":
            found["message"] = {"role": "assistant", **_parts(choice.message, choice.text)}
        return found

    async def logprobs(
        self, index: int, tokens: Sequence[int], logprobs: Sequence[float]
    ) -> dict[str, Any] | None:
        """The log-probs of a choice's next tokens, in the form of its kind; None: not wanted."""
        wanted = self._wanted
        if not wanted.logprobs:
            return None
        if wanted.as_ids:
            names = [f"token_id:{token}" for token in tokens]
        else:
            names = await self._policy.pieces(tokens)
        if wanted.kind == "completion":
            ends = np.cumsum([self._offsets.get(index, 0), *map(len, names)]).tolist()
            self._offsets[index] = ends[-1]
            return {
                "tokens": names,
                "token_logprobs": list(logprobs),
                "top_logprobs": None,
                "text_offset": ends[:-1],
            }
        content = [
            {"token": name, "logprob": logprob, "bytes": _bytes(name), "top_logprobs": []}
            for name, logprob in zip(names, logprobs, strict=True)
        ]
        return {"content": content}

    async def gain(
        self, index: int, tokens: Sequence[int], logprobs: Sequence[float], text: str, begun: bool
    ) -> bytes:
        """An event with what a choice has gained.

        Args:
          begun: True if it is not the choice's first.
        """
        kind = self._wanted.kind
        choice: dict[str, Any] = {"index": index, "finish_reason": None}
        if kind == "chat":
            choice["delta"] = {} if begun else {"role": "assistant"}
            choice["delta"]["content"] = text
        elif kind == "completion":
            choice["text"] = text
        return await self._event(choice, tokens, logprobs)

    async def end(
        self,
        index: int,
        answered: Answered,
        choice: Choice,
        sent: tuple[int, str] | None,
    ) -> bytes:
        """An event with the rest of a choice; it names the weight version and the prompt's ids.

        Args:
          sent: number of tokens, and text, that ``gain`` had; None: there was none.

        Raises:
          Refused: the choice's text does not begin with what was sent.
        """
        count, text = sent or (0, "")
        found: dict[str, Any] = {"index": index, "finish_reason": _finish(choice)}
        parts = _parts(choice.message, choice.text)
        whole = choice.text if choice.message is None else choice.message.content or ""
        if not whole.startswith(text):
            raise Refused(
                "the tokenizer has changed text that was sent already: ask without stream",
                status=500,
                kind="server_error",
            )
        if self._wanted.kind == "chat":
            delta = {} if sent else {"role": "assistant"}
            calls = [{"index": i, **call} for i, call in enumerate(parts.pop("tool_calls", ()))]
            found["delta"] = delta | parts | ({"tool_calls": calls} if calls else {})
            if sent:
                found["delta"]["content"] = whole[len(text) :]
        elif self._wanted.kind == "completion":
            found["text"] = whole[len(text) :]
            if self._wanted.ids:
                found["prompt_token_ids"] = answered.prompt.tolist()
        tokens, logprobs = choice.tokens[count:].tolist(), choice.logprobs[count:].tolist()
        return await self._event(found, tokens, logprobs, (Answered(answered.prompt, (choice,)),))

    async def _event(
        self,
        choice: dict[str, Any],
        tokens: Sequence[int],
        logprobs: Sequence[float],
        answers: Sequence[Answered] = (),
    ) -> bytes:
        choice["logprobs"] = (
            await self.logprobs(choice["index"], tokens, logprobs) if tokens else None
        )
        if self._wanted.ids:
            choice["token_ids"] = list(tokens)
        usage = {"usage": None} if self._wanted.usage else {}
        return event({**self._head(answers, ".chunk"), "choices": [choice], **usage})

    def last(self, answers: Sequence[Answered]) -> bytes:
        """The events behind all choices."""
        found = b""
        if self._wanted.usage:
            usage = {"choices": [], "usage": _usage(answers)}
            found = event({**self._head(answers, ".chunk"), **usage})
        return found + b"data: [DONE]\n\n"


def event(found: Mapping[str, Any]) -> bytes:
    """One server-sent event, on one line (WHATWG HTML, section 9.2)."""
    return b"data: " + as_json(found) + b"\n\n"


def as_json(found: Mapping[str, Any]) -> bytes:
    """JSON in ASCII, so that no lone surrogate of a token's bytes can break it."""
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


def _finish(choice: Choice) -> str:
    called = choice.message is not None and choice.message.tool_calls
    return "tool_calls" if called else choice.finish


def _parts(message: AssistantMessage | None, text: str) -> dict[str, Any]:
    if message is None:
        return {"content": text}
    found: dict[str, Any] = {"content": message.content}
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return found


def _bytes(piece: str) -> list[int] | None:
    """UTF-8 of a token's text; None if its bytes are no whole characters."""
    return None if "\ufffd" in piece else list(piece.encode())


def _usage(answers: Sequence[Answered]) -> dict[str, int]:
    prompt = sum(len(answered.prompt) for answered in answers)
    sampled = sum(len(choice.tokens) for answered in answers for choice in answered.choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
