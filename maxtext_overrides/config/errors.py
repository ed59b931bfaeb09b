"""Turns config errors of MaxText, pydantic and OmegaConf into one readable ConfigError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlax_plugin.base.errors import ConfigError, alternatives

Fields = Mapping[str, FieldInfo]

_MOST_SHOWN = 12  # of what would be right; of more, the nearest
_MUST = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "string_type": "must be text",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "missing": "must be set",
}


class NoSuchKeyError(ConfigError):
    """A key that MaxText does not have; it has no effect on what else is wrong."""


def together(problems: Sequence[ConfigError]) -> ConfigError:
    """Returns the first problem, with those of other keys as further lines of its message."""
    by_key: dict[str, ConfigError] = {}
    for problem in problems:
        by_key.setdefault(problem.key, problem)
    first, *others = by_key.values()
    return first.followed_by(f"also {problem}" for problem in others) if others else first


def of_validation(error: ValidationError, fields: Fields, given: Mapping[str, Any]) -> ConfigError:
    """Returns all problems that pydantic found as one ConfigError.

    Args:
      fields: fields of the config class.
      given: keys that files and arguments set, with their values.
    """
    # A union counts once: pydantic tells what is wrong for each of its types.
    by_key: dict[tuple[int | str, ...], Mapping[str, Any]] = {}
    for problem in error.errors():
        by_key.setdefault(problem["loc"][:1], problem)
    return together([_of_problem(problem, fields, given) for problem in by_key.values()])


def _of_problem(
    problem: Mapping[str, Any], fields: Fields, given: Mapping[str, Any]
) -> ConfigError:
    location, known = _place(problem["loc"], fields)
    if not location:
        values = problem["input"] if isinstance(problem["input"], Mapping) else {}
        named = {key: values.get(key, given[key]) for key in given}
        message = re.sub(r"^(Value error|Assertion failed), ", "", problem["msg"])
        return of_text(message, fields, named, "config")
    key, value = ".".join(location), problem["input"]
    if problem["type"] == "extra_forbidden":
        reason = "no such key; " + _nearest(location[-1], known)
    elif "expected" in (problem.get("ctx") or {}):
        right = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
        reason = "no such value; " + _nearest(str(value), right)
    else:
        reason = _MUST.get(problem["type"]) or re.sub(r"^Input should", "must", problem["msg"])
    if problem["type"] == "missing":
        value = None
    field = known.get(location[-1])
    if field is not None and field.description:
        reason += f" ({field.description.rstrip('.')})"
    return ConfigError(key, value, reason)


def of_text(message: str, fields: Fields, given: Mapping[str, Any], fallback: str) -> ConfigError:
    """Returns a ConfigError for a plain-text error of MaxText, naming the key it is about.

    Args:
      given: keys that files and arguments set, with their values.
      fallback: name to report if no key is found in the message.
    """
    unknown = re.match(r"'([^']*)' not in ", message)
    if unknown:
        key = unknown[1]
        return NoSuchKeyError(key, given.get(key), "no such key; " + _nearest(key, fields))
    message = " ".join(message.split())
    keys = list(dict.fromkeys(_mentioned(message, fields, given)))
    if not keys:
        return ConfigError(fallback, None, message)
    others = ", ".join(f"{key} = {given[key]!r}" for key in keys[1:] if key in given)
    return ConfigError(keys[0], given.get(keys[0]), message + (f" ({others})" if others else ""))


def _place(location: Sequence[Any], fields: Fields) -> tuple[list[str], Fields]:
    """Returns the key at the start of a pydantic location, and the fields beside its last name.

    After the key, pydantic's location names the types of a union, which the user did not write.
    """
    found: list[str] = []
    known, annotation = fields, None
    for part in map(str, location):
        if found:
            inner = getattr(annotation, "model_fields", None)
            if not (isinstance(annotation, type) and issubclass(annotation, BaseModel) and inner):
                break
            known = inner
        found.append(part)
        annotation = getattr(known.get(part), "annotation", None)
    return found, known


def _mentioned(message: str, fields: Fields, given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys that a message is about, the likeliest first."""
    words = re.findall(r"[a-z][a-z0-9_]+", message)
    for word in words:  # MaxText derives num_kv_heads from base_num_kv_heads
        yield from (key for key in (word, f"base_{word}") if "_" in word and key in given)
    yield from (word for word in words if "_" in word and word in fields)
    spaced = f" {re.sub(r'[^a-z0-9]+', ' ', message.lower())} "
    for key in (*given, *fields):
        if "_" in key and f" {key.replace('_', ' ')} " in spaced:
            yield key
    quoted = set(re.findall(r"'([^']+)'", message))
    for key, value in given.items():
        if quoted & set(map(str, value if isinstance(value, list) else [value])):
            yield key


def _nearest(name: str, known: Sequence[str] | Fields) -> str:
    """Returns a hint that names the keys most like the given one."""
    if len(known) <= _MOST_SHOWN:
        return alternatives(name, known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if not near:
        return f"MaxText knows {len(known)}, and none like it"
    return f"did you mean {' or '.join(map(repr, near))}?"
