"""Selects the columns of a row and turns the row, which may hold any values, into a question."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.data.prompts.config import KEY, DatasetConfig

QUESTIONS = ("question", "prompt", "problem", "instruction", "messages")
REFERENCES = ("answer", "reference", "solution", "ground_truth", "target")
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """Placeholder that a source yields for a row that it cannot read.

    Attributes:
      what: the defect, such as ``is no JSON``.
    """

    what: str


class BrokenRowError(ValueError):
    """A row cannot be used."""


class Row(NamedTuple):  # there are millions of them
    """A row that can be used.

    Attributes:
      place: location of the row, for messages.
      question: a text, or all messages before the policy's answer; or a demonstration.
      text: text of the question; for messages, text of all of them.
      metadata: as JSON.
      bytes: size of question, reference and metadata together.
    """

    place: str
    question: Any
    text: str
    reference: str
    metadata: Mapping[str, Any]
    metadata_json: str
    domain: str
    bytes: int


class Columns:
    """Splits rows into question, reference and metadata.

    Args:
      chat: True if questions are put into a chat template.
      names: the columns of the first row; they decide the role of each column.

    Attributes:
      question: the column of the question, or its template.
      reference: the column of the reference; empty if there is none.
    Raises:
      ConfigError: a column that the config names is missing, or it must name one.
    """

    def __init__(self, config: DatasetConfig, chat: bool, names: Collection[str]):
        self._config, self._chat, self._template = config, chat, config.template
        self.question = config.question or _found("question", QUESTIONS, names, needed=True)
        self.reference = config.reference or _found("reference", REFERENCES, names)
        self._text_columns = (self.question,) if self._template is None else self._template
        named = {"question": self._text_columns, "metadata": config.metadata or ()}
        named |= {"reference": (self.reference,), "domain": (config.domain,)}
        for option, columns in named.items():
            for column in filter(None, columns):
                if column not in names and re.split(r"[.\[]", column)[0] not in names:
                    given = getattr(config, option)
                    reason = f"the data has no column {column!r}; {alternatives(column, names)}"
                    raise ConfigError(f"{KEY}.{option}", given, reason)
        self._left_out = {self.reference}
        if self._template is None:
            self._left_out.add(self.question)

    def take(self, place: str, row: Mapping[str, Any]) -> Row:
        """Turns a row into a question.

        Raises:
          BrokenRowError: a value in it is not valid.
        """
        question, text = self._question(row)
        if not self.reference and (late := [one for one in REFERENCES if one in row]):
            raise BrokenRowError(
                f"has a reference in {late[0]!r}, a column that the first row lacks, so that no "
                "row would have a reference: add it there"
            )
        reference = _text_of(_column(row, self.reference), self.reference) if self.reference else ""
        wanted = self._config.metadata
        metadata = {
            name: value
            for name, value in row.items()
            if (name in wanted if wanted is not None else name not in self._left_out)
        }
        if not isinstance(question, str):
            metadata["messages"] = [dict(one) for one in question]
        written = _json(metadata)
        domain = ""
        if self._config.domain:
            domain = _text_of(_column(row, self._config.domain), self._config.domain)
        try:
            size = len(f"{text}{reference}{written}{domain}".encode())
        except UnicodeEncodeError:
            raise BrokenRowError("holds a lone surrogate, which is no character") from None
        if size > self._config.max_row_bytes:
            raise BrokenRowError(f"has {size:,} bytes, more than max_row_bytes")
        return Row(place, question, text, reference, metadata, written, domain, size)

    def _question(self, row: Mapping[str, Any]) -> tuple[str | Sequence[Message], str]:
        if self._template is not None:
            values = {name: _text_of(_column(row, name), name) for name in self._template}
            parts = string.Formatter().parse(self._config.question)
            text = "".join(fixed + values.get(name or "", "") for fixed, name, _, _ in parts)
            return text, text
        found = _column(row, self.question)
        if isinstance(found, str):
            if not found.strip():
                raise BrokenRowError(f"has an empty {self.question!r}")
            return found, found
        if not isinstance(found, list):
            raise BrokenRowError(
                f"has {one_line(repr(found), 40)} in {self.question!r}: a question is a text or a "
                "list of messages"
            )
        if not self._chat:
            raise BrokenRowError(f"has messages in {self.question!r}, which need chat: true")
        messages = [message_of(one, self.question) for one in found]
        if not messages or messages[-1]["role"] == "assistant":
            raise BrokenRowError(
                f"has messages in {self.question!r} that do not end with a question: the last one "
                "must not be the assistant's"
            )
        return messages, "\n".join(f"{one['role']}: {one['content']}" for one in messages)


def _found(option: str, known: Sequence[str], names: Collection[str], needed: bool = False) -> str:
    """The one column with a usual name for this option."""
    found = [name for name in known if name in names]
    if len(found) > 1:
        reason = f"must name a column, because there are {' and '.join(map(repr, found))}"
        raise ConfigError(f"{KEY}.{option}", None, reason)
    if not found and needed:
        has = one_line(", ".join(sorted(map(repr, names))) or "none", 300)
        reason = f"must name the column of the question; there are: {has}"
        raise ConfigError(f"{KEY}.{option}", None, reason)
    return found[0] if found else ""


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    column, is_item, index = name.rstrip("]").partition("[")
    if is_item:
        items = row.get(column)
        if not isinstance(items, list) or int(index) >= len(items):
            raise BrokenRowError(f"has no list in {column!r} with an item {index}")
        return items[int(index)]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise BrokenRowError(f"has no column {name!r}")
        value = value[part]
    return value


def _text_of(value: Any, column: str) -> str:
    """A text, or a number as JSON writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    shown = one_line(repr(value), 40)
    raise BrokenRowError(f"has {shown} in {column!r}, which must be a text or a number")


def message_of(one: Any, column: str, may_call: bool = False) -> dict[str, Any]:
    """A message of a row, without keys whose value is None.

    Args:
      may_call: True: the assistant's may have calls of tools instead of a content.

    Raises:
      BrokenRowError: it is none.
    """
    if isinstance(one, Mapping):
        found = {key: value for key, value in one.items() if value is not None}
        role, content = found.get("role"), found.get("content")
        calls = may_call and role == "assistant" and found.get("tool_calls")
        has_content = isinstance(content, str) or (content is None and calls)
        if isinstance(role, str) and _ROLE.fullmatch(role) and has_content:
            return found
    shown = one_line(repr(one), 40)
    raise BrokenRowError(f"has {shown} in {column!r}: a message has a role and a content of text")


def _json(metadata: Mapping[str, Any]) -> str:
    try:
        return _encode(metadata)
    except (TypeError, ValueError, RecursionError):
        for name, value in metadata.items():
            try:
                _encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise BrokenRowError(
                    f"has a value in {name!r} that JSON cannot hold ({one_line(str(error), 80)}); "
                    "metadata can name the columns that are wanted"
                ) from None
        raise BrokenRowError("has a column whose name is no text") from None
