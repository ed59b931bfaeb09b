"""Reads completions from a file of JSON lines, for ``rlax score``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import IO, Any, Literal, NoReturn

import numpy as np
from pydantic import AliasChoices, Field

from rlax_plugin.config import NonNegativeInt, Section
from rlax_plugin.config.validation import validate
from rlax_plugin.errors import ConfigError
from rlax_plugin.text.harmless import storable
from rlax_plugin.types import Prompt

_LONGEST = 64 << 20  # bytes of a line


class Line(Section):
    """One completion; its prompt is in the same line or in the config's prompt source.

    Attributes:
      number: number of the line, from 1.
      place: the file and the line, for messages.
    """

    number: int
    place: str
    completion: str
    prompt: str = ""
    reference: str | None = Field(
        default=None, validation_alias=AliasChoices("reference", "answer")
    )
    metadata: dict[str, Any] = Field(default={})
    id: str = ""
    tokens: tuple[NonNegativeInt, ...] | None = None
    finish: Literal["stop", "length"] = "stop"

    @property
    def names_a_prompt(self) -> bool:
        """True if the prompt is one of the config's prompt source."""
        return bool(self.id) and self.reference is None and not self.prompt and not self.metadata

    @property
    def identity(self) -> str:
        """A key that is equal for lines with the same prompt."""
        return json.dumps([self.id, self.prompt, self.reference, self.metadata], sort_keys=True)

    def as_prompt(self) -> Prompt:
        """Returns the prompt that the line describes, without tokens."""
        name, tokens = self.id or f"line {self.number}", np.zeros(0, np.int32)
        return Prompt(name, tokens, self.prompt, self.reference or "", self.metadata)


def read_lines(file: str) -> Iterator[Line]:
    """Yields the completions of a file; blank lines are left out.

    Args:
      file: path of the file; ``-``: standard input.

    Raises:
      ConfigError: the file cannot be read or is empty, or a line is wrong; names the line.
    """
    found = False
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as stream:
            for number, text in _texts(stream, file):
                found = True
                yield _line(text, number, f"{file}:{number}")
    except OSError as error:
        raise ConfigError("FILE", file, f"cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError("FILE", file, "has no completions")


def _texts(stream: IO[bytes], file: str) -> Iterator[tuple[int, str]]:
    number = 0
    while data := stream.readline(_LONGEST + 1):
        number += 1
        if len(data) > _LONGEST:
            raise ConfigError(f"{file}:{number}", "...", f"is longer than {_LONGEST >> 20} MiB")
        try:
            text = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}:{number}", None, f"is not UTF-8: {error}") from None
        if text.strip():
            yield number, text


def _line(text: str, number: int, place: str) -> Line:
    try:
        values = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigError(place, text.strip()[:80], f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(place, values, 'must be an object such as {"completion": "...", ...}')
    given = {key: _storable(value) for key, value in values.items()}
    for key in ("number", "place"):
        if key in given:
            raise ConfigError(f"{place}: {key}", given[key], "is not a key of a completion")
    return validate(Line, given | {"number": number, "place": place}, place)


def _storable(value: Any) -> Any:
    """Returns a JSON value without lone surrogates, like texts of prompt sources and engines."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, dict):
        return {storable(key): _storable(one) for key, one in value.items()}
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
