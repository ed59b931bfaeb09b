"""Demonstrations: the rows of a dataset as whole conversations, of which the answers train.

A row has ``messages``, or ``prompt`` and ``completion``, each a text or messages; and it may have
``tools``, the descriptions that the chat template gets. With ``messages`` all answers of the
assistant train, with a ``completion`` only those in it; ``turns: last`` takes the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.chat import Demonstration, Message
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.data.prompts.config import KEY, DatasetConfig
from rlax_plugin.data.prompts.row_columns import BrokenRowError, Row, message_of

Turns = Literal["all", "last"]
"""The answers of a conversation that train."""
MESSAGES, PROMPT, COMPLETION, TOOLS = "messages", "prompt", "completion", "tools"
_UNUSED = ("reference", "metadata", "domain", "weights", "stop_strings", "max_tokens")
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation whose answers train.

    Attributes:
      turns: indices of the answers that train, ascending.
    """

    messages: Sequence[Message]
    turns: Sequence[int]
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text and what continues it, for a model without a chat template."""

    prompt: str
    completion: str


class ConversationColumns:
    """Reads rows as demonstrations; see ``row_columns.Columns``, whose place it takes.

    Args:
      chat: True if the tokenizer's chat template writes the messages.
      fills_with_null: see ``DatasetSource``.
      first: the first row, whose columns with a value decide which ones are read.

    Raises:
      ConfigError: they are not those of demonstrations, or the config sets an option of prompts.
    """

    reference = ""

    def __init__(
        self,
        config: DatasetConfig,
        chat: bool,
        turns: Turns,
        fills_with_null: bool,
        first: Mapping[str, Any],
    ):
        check_options(config)
        self._config, self._chat, self._turns = config, chat, turns
        self._fills_with_null = fills_with_null
        filled = [name for name, value in first.items() if value is not None]
        names = filled if {MESSAGES, PROMPT} & set(filled) else list(first)
        self.question = config.question or (MESSAGES if MESSAGES in names else PROMPT)
        self._is_pair = not config.question and self.question == PROMPT
        wanted = (PROMPT, COMPLETION) if self._is_pair else (self.question,)
        if not set(wanted) <= set(first):
            has = one_line(", ".join(sorted(map(repr, first))) or "none", 300)
            reason = (
                "demonstrations have a column messages (or the one that question names), or the "
                f"columns prompt and completion; there are: {has}"
            )
            raise ConfigError(f"{KEY}.question", config.question or None, reason)

    def take(self, place: str, row: Mapping[str, Any]) -> Row:
        """Turns a row into a demonstration.

        Raises:
          BrokenRowError: it is none.
        """
        if self._fills_with_null:
            row = _without_nulls(row)
        question = self._pair(row) if self._is_pair else self._conversation(row)
        if isinstance(question, Continuation):
            asked, answered = question.prompt, question.completion
        else:
            begin = question.turns[0]
            asked = _json(question.messages[:begin])
            answered = _json([question.messages[begin:], question.turns, question.tools])
        try:
            size = len(f"{asked}{answered}".encode())
        except UnicodeEncodeError:
            raise BrokenRowError("holds a lone surrogate, which is no character") from None
        if size > self._config.max_row_bytes:
            raise BrokenRowError(f"has {size:,} bytes, more than max_row_bytes")
        return Row(place, question, asked, answered, {}, "{}", "", size)

    def _pair(self, row: Mapping[str, Any]) -> Conversation | Continuation:
        prompt, completion = _column(row, PROMPT), _column(row, COMPLETION)
        if not self._chat:
            if isinstance(prompt, str) and isinstance(completion, str) and prompt and completion:
                return Continuation(prompt, completion)
            raise BrokenRowError(
                "must have texts in 'prompt' and 'completion', because the tokenizer has no chat "
                "template, or chat is false"
            )
        before = _messages(prompt, PROMPT, "user")
        return self._answered(before, _messages(completion, COMPLETION, "assistant"), row)

    def _conversation(self, row: Mapping[str, Any]) -> Conversation:
        if not self._chat:
            raise BrokenRowError(
                f"has messages in {self.question!r}, which need a tokenizer with a chat template"
            )
        found = _column(row, self.question)
        if not isinstance(found, list | tuple):
            shown = one_line(repr(found), 40)
            raise BrokenRowError(f"has {shown} in {self.question!r}, not a list of messages")
        return self._answered([], _messages(found, self.question, ""), row)

    def _answered(
        self, before: list[Message], after: list[Message], row: Mapping[str, Any]
    ) -> Conversation:
        messages = [*before, *after]
        start = len(before)
        if self._config.system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self._config.system}, *messages]
            start += 1
        roles = [message["role"] for message in messages]
        turns = [i for i in range(start, len(roles)) if roles[i] == "assistant"]
        if not turns:
            raise BrokenRowError("has no answer: no message of the assistant that could train")
        trained = turns if self._turns == "all" else turns[-1:]
        if trained[0] == 0:
            raise BrokenRowError("begins with the assistant: an answer follows a message")
        if turns[-1] != len(roles) - 1:
            raise BrokenRowError(
                f"ends with a message of the role {roles[-1]!r}: the last one must be the "
                "assistant's"
            )
        return Conversation(messages, trained, _tools(row))


def check_options(config: DatasetConfig) -> None:
    """Checks that a config sets no option that only prompts have.

    Raises:
      ConfigError: it does.
    """
    for option in _UNUSED:
        if (value := getattr(config, option)) not in ((), {}, "", None):
            reason = "is of prompts, and has no meaning for demonstrations: remove it"
            raise ConfigError(f"{KEY}.{option}", value, reason)


def encoded(
    tokenizer: Tokenizer, question: Conversation | Continuation, most_tokens: int | None = None
) -> Demonstration:
    """Returns the tokens of a demonstration, and those that train.

    Raises:
      TooLongError: a conversation has more than ``most_tokens``.
      RlaxError, ValueError: it cannot be encoded; see ``ChatTemplate.demonstration``.
    """
    if isinstance(question, Conversation):
        return tokenizer.chat.demonstration(
            question.messages, question.turns, question.tools, most_tokens
        )
    given = [*tokenizer.bos_ids, *tokenizer.encode(question.prompt)]
    ending = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    tokens = [*given, *tokenizer.encode_behind(question.completion), *ending]
    return Demonstration(tokens, [(len(given), len(tokens))])


def _without_nulls(value: Any) -> Any:
    """Returns a value without the keys whose value is None, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _column(row: Mapping[str, Any], name: str) -> Any:
    if row.get(name) is None:
        raise BrokenRowError(f"has no {name!r}")
    return row[name]


def _messages(found: Any, column: str, role: str) -> list[Message]:
    """Returns messages; a text is one of a role."""
    if isinstance(found, str):
        if not found.strip():
            raise BrokenRowError(f"has an empty {column!r}")
        return [{"role": role, "content": found}]
    if not isinstance(found, list | tuple) or not found:
        shown = one_line(repr(found), 40)
        raise BrokenRowError(f"has {shown} in {column!r}: it must be a text, or messages")
    return [message_of(message, column, may_call=True) for message in found]


def _tools(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the descriptions of tools; they may be written as JSON in a text."""
    found = row.get(TOOLS)
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except ValueError:
            raise BrokenRowError(f"has a text in {TOOLS!r} that is no JSON") from None
    if not found:
        return ()
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        shown = one_line(repr(found), 60)
        raise BrokenRowError(f"has {shown} in {TOOLS!r}, which must be a list of JSON schemas")
    return found


def _json(value: Any) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        shown = one_line(str(error), 80)
        raise BrokenRowError(f"has a message that JSON cannot hold ({shown})") from None
