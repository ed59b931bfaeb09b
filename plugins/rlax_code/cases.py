"""Reads the tests of a prompt from its data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlax_plugin.api import Prompt

_FORMS = (
    'a text of Python, a list of such texts, a list of {"input": ..., "output": ...}, or '
    '{"inputs": [...], "outputs": [...]}'
)


@dataclass(frozen=True, slots=True)
class Statements:
    """Python code that raises unless the tested code is right, such as ``assert f(2) == 4``.

    Attributes:
      text: the code.
      entry: name of the function that its ``check`` is called with; empty if it has none.
    """

    text: str
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A test that gives a program its stdin and states the expected output."""

    given: str
    expected: str

    def holds(self, printed: str) -> bool:
        """True if a program printed the expected output; white space at line ends is ignored."""
        return _lines(printed) == _lines(self.expected)


Case = Statements | Dialogue


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def cases_of(prompt: Prompt, column: str, call: str) -> list[Case]:
    """Returns the tests of a prompt.

    Args:
      prompt: the prompt.
      column: column of its metadata with the tests; if it is missing or empty, the reference is
        used.
      call: column with the name of a function, which ``check`` in the tests is called with.

    Raises:
      ValueError: there are none, or they have another form; names prompt and column.
    """
    found = prompt.metadata.get(column) if column else None
    where = f"column {column!r}"
    if not found:
        found, where = _reference(prompt.reference), f"column {column!r}, and the reference"
    cases = _cases(found)
    if not cases:
        raise ValueError(f"prompt {prompt.id} has no tests in {where}: expected {_FORMS}")
    name = prompt.metadata.get(call) if call else None
    if name is None:
        return cases
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"prompt {prompt.id}: column {call!r} is not the name of a function")
    return [Statements(one.text, name) if isinstance(one, Statements) else one for one in cases]


def _reference(text: str) -> Any:
    """Returns the tests of a reference, parsed if it is JSON, else as Python code."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _cases(found: Any) -> list[Case]:
    """Returns the tests; empty if they have none of the known forms."""
    if isinstance(found, str):
        return [Statements(found)] if found.strip() else []
    if isinstance(found, Mapping):
        inputs, outputs = found.get("inputs"), found.get("outputs")
        if not _same_length(inputs, outputs):
            return []
        found = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
    if not isinstance(found, Sequence):
        return []
    cases = [_case(one) for one in found]
    return [case for case in cases if case is not None] if None not in cases else []


def _same_length(inputs: Any, outputs: Any) -> bool:
    lists = isinstance(inputs, list) and isinstance(outputs, list)
    return lists and len(inputs) == len(outputs)


def _case(one: Any) -> Case | None:
    if isinstance(one, str):
        return Statements(one)
    if isinstance(one, Mapping):
        given, expected = one.get("input"), one.get("output")
        if isinstance(given, str) and isinstance(expected, str):
            return Dialogue(given, expected)
    return None
