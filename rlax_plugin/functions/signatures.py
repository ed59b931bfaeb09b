"""The signature of a function: its parameters' names say what it is called with.

Standard library only: a child process that inspects a function imports this and ``loading``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["sample", "group"]

SAMPLE = ("completion", "prompt", "reference", "tokens", "metadata")
"""Parameters of a reward for one sample; every other one is a column of the data."""

GROUP = ("completions", "prompts", "reference", "completion_ids", "metadata")
"""Parameters of a reward for a group; each is a list with an entry for each sample."""

FILTER = (
    "completions",
    "rewards",
    "prompt",
    "reference",
    "lengths",
    "truncated",
    "pass_rate",
    "metadata",
)
"""Parameters of a filter, which always sees a group."""

_OF_SAMPLE = frozenset(("completion", "prompt", "tokens"))
_OF_GROUP = frozenset(("completions", "prompts", "completion_ids"))
_ANSWERS = frozenset(("completion", "tokens", "completions", "completion_ids"))
_OF_TRL = frozenset(("trainer_state", "log_extra", "log_metric", "environments"))
_KIND = inspect.Parameter


class FunctionError(Exception):
    """A function cannot be used; the message says why, with file and line, and what is right."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as it is called.

    Attributes:
      form: "sample": once for each sample; "group": once for all samples of a prompt.
      waits: True if it is an ``async`` function.
      required: names of the parameters without a default.
      optional: names of those with one.
      rest: True if it takes ``**columns``.
      file: name of the file that defines it, without directory.
      line: line of its ``def``.
      name: its name in that file.
    """

    form: Form
    waits: bool
    required: tuple[str, ...]
    optional: tuple[str, ...]
    rest: bool
    file: str
    line: int
    name: str

    @property
    def where(self) -> str:
        """The function with file and line, for messages."""
        return f"{self.name} ({self.file}, line {self.line})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the data must have."""
        known = {*SAMPLE, *GROUP, *FILTER}
        return tuple(name for name in self.required if name not in known)


def signature_of(function: object, name: str, kind: str, file: str) -> Signature:
    """Returns the signature of a function.

    Args:
      name: its name in the config.
      kind: ``reward`` or ``filter``.
      file: name of the file that the config names; empty for a function of a module.

    Raises:
      FunctionError: it cannot be a reward or filter.
    """
    plain = _plain(function, name, file)
    code = inspect.unwrap(plain).__code__
    place, line = os.path.basename(code.co_filename), code.co_firstlineno
    where = f"{name} ({place}, line {line})"
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise FunctionError(f"{where} is a generator: it must return its value, and not yield it")
    required, optional, rest = _parameters(plain, where)
    named = (*required, *optional)
    form = _form(named, where) if kind == "reward" else _filter_form(named, where)
    if kind == "filter" and inspect.iscoroutinefunction(plain):
        raise FunctionError(f"{where} is async: a filter must be a plain def")
    if lacking := [one for one in required if one in _OF_TRL]:
        reason = "is an object of TRL's trainer, which does not exist here: give it a default"
        raise FunctionError(f"{where}: its parameter {lacking[0]!r} {reason}")
    waits = inspect.iscoroutinefunction(plain)
    return Signature(form, waits, required, optional, rest, place, line, name)


def _plain(function: object, name: str, file: str) -> Callable[..., Any]:
    what = f"{name} of {file}" if file else name
    define = f"must be a function: def {name}(completion): ..."
    if inspect.isclass(function):
        raise FunctionError(f"{what} is a class: it {define}")
    if not callable(function):
        raise FunctionError(f"{what} is {function!r:.80}, and cannot be called: it {define}")
    if not inspect.isfunction(function):
        kind = type(function).__name__
        raise FunctionError(f"{what} is an object of type {kind}: it {define}")
    if function.__name__ == "<lambda>":
        line = function.__code__.co_firstlineno
        raise FunctionError(f"{what} is a lambda (line {line}): it {define}")
    return function


def _parameters(function: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    required: list[str] = []
    optional: list[str] = []
    rest = False
    for one in inspect.signature(function).parameters.values():
        if one.kind is _KIND.POSITIONAL_ONLY:
            reason = "is positional-only: remove the / behind it, as parameters are given by name"
            raise FunctionError(f"{where}: its parameter {one.name!r} {reason}")
        if one.kind is _KIND.VAR_POSITIONAL:
            reason = "cannot be filled: parameters are given by name; **columns takes all columns"
            raise FunctionError(f"{where}: *{one.name} {reason}")
        if one.kind is _KIND.VAR_KEYWORD:
            rest = True
        else:
            (required if one.default is _KIND.empty else optional).append(one.name)
    return tuple(required), tuple(optional), rest


def _form(named: Sequence[str], where: str) -> Form:
    group = [one for one in named if one in _OF_GROUP]
    sample = [one for one in named if one in _OF_SAMPLE]
    if group and sample:
        raise FunctionError(
            f"{where} takes {group[0]!r}, a list over the samples of a group, and {sample[0]!r}, "
            "of one sample: take those of one form"
        )
    if not any(one in _ANSWERS for one in named):
        raise FunctionError(
            f"{where} takes{_listed(named)}, and neither 'completion', the text of one sample, nor "
            "'completions', those of a group: take one of them"
        )
    return "group" if group else "sample"


def _filter_form(named: Sequence[str], where: str) -> Form:
    wrong = {"completion": "completions", "prompts": "prompt", "completion_ids": "lengths"}
    for one in named:
        if one in wrong:
            reason = f"a filter sees a whole group: take {wrong[one]!r}"
            raise FunctionError(f"{where}: it has no {one!r}, as {reason}")
    return "group"


def _listed(named: Iterable[str]) -> str:
    return f" {', '.join(map(repr, named))}" if named else " no parameter"
