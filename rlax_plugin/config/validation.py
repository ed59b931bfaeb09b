"""Turns the errors that pydantic finds in a config into one readable ConfigError."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlax_plugin.base.errors import ConfigError, UnknownKeyError
from rlax_plugin.config import (
    Choice,
    EnvironmentChoice,
    FunctionChoice,
    RewardChoice,
    SelectionChoice,
)
from rlax_plugin.config.schedules import NUMBER, SCHEDULE, Schedule

_MUST = {
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "finite_number": "must be a finite number",
}
_TYPES = {"bool", "int", "float", "str"}  # as pydantic adds them to the place of a value
_CHOICES = {
    one.__name__
    for one in (Choice, EnvironmentChoice, FunctionChoice, RewardChoice, SelectionChoice)
}
_NO_KEYS = {"[key]", NUMBER, SCHEDULE}  # pydantic adds them to the place of a value
_TOLD = 5  # problems; one mistake may be the cause of many


def validate[M: BaseModel](model: type[M], values: Mapping[str, Any], key: str) -> M:
    """Makes a config object from YAML values; text never becomes a number, and true never 1.

    Args:
      model: the config class.
      values: the values read from YAML.
      key: dotted key of ``values``, e.g. ``rlax.launcher``.

    Raises:
      ConfigError: names the first problem with its full dotted key; up to four others follow, one
        per line. An error raised by a validator of ``model`` is passed on, and a relative key in it
        is completed.
    """
    try:
        # Strict JSON is what fits YAML: lists for tuples, 1 for 1.0, but not "1" or true for 1.
        return model.model_validate_json(json.dumps(values, default=_plain), strict=True)
    except ConfigError as error:
        if error.key.split(".")[0] == key.split(".")[0]:
            raise
        raise ConfigError(f"{key}.{error.key}", error.value, error.reason) from None
    except ValidationError as error:
        problems = [_explain(one, model, key) for one in _own(error.errors())]
        first, others = problems[0], problems[1:]
        told = [f"also {other}" for other in others[: _TOLD - 1]]
        if left := len(others) - len(told):
            told.append(f"and {left} more problem{'s' if left > 1 else ''} under {key}")
        raise first.followed_by(told) from None


def _plain(value: Any) -> Any:
    """Converts a numpy scalar, such as a preset may compute, to a number; others to text."""
    return value.item() if hasattr(value, "item") else str(value)


def _own(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns each problem once, at its place.

    Lists that pydantic finds too short because it removed bad items are left out. A value that may
    have several types is one problem, not one for each type.
    """
    found: list[Mapping[str, Any]] = []
    for one in problems:
        if one["type"] == "too_short" and len(one["input"]) >= one["ctx"]["min_length"]:
            continue
        *place, last = one["loc"] or ("",)
        tried = {p["loc"][-1] for p in problems if p["loc"] and [*p["loc"][:-1]] == place}
        if not (last in _TYPES and tried <= _TYPES and len(tried) > 1):
            found.append(one)
        elif found and list(found[-1]["loc"]) == place:
            if one["type"] == "finite_number":  # the type that the value has
                found[-1] = {**one, "loc": tuple(place)}
        else:
            found.append({**one, "loc": tuple(place)})
    return found


def _explain(problem: Mapping[str, Any], model: type[BaseModel], key: str) -> ConfigError:
    field, owner = _field_at(model, problem["loc"])
    location = [part for part in problem["loc"] if part not in _NO_KEYS]
    dotted = ".".join([key, *map(str, location)])
    value: Any = problem["input"]
    kind = problem["type"]
    if kind == "extra_forbidden":
        return UnknownKeyError(dotted, value, _by_key(owner))
    if kind == "missing":
        value, reason = None, "must be given"
    elif kind == "model_type" and problem["ctx"]["class_name"] in _CHOICES:
        name = value if isinstance(value, str) else "..."
        reason = f"must be a mapping with a name, such as {{name: {name}}}"
    elif kind in ("model_type", "dict_type"):
        reason = "must be a mapping of keys to values"
    elif kind == "too_short":
        least = problem["ctx"]["min_length"]
        reason = f"must name at least {'one' if least == 1 else least}"
    elif kind == "value_error":
        reason = str(problem["ctx"]["error"])
    else:
        reason = _MUST.get(kind) or re.sub(r"^\w+ should", "must", problem["msg"])
    if field is not None and not (kind == "value_error" and isinstance(location[-1], int)):
        reason += _about(field)
    return ConfigError(dotted, value, reason)


def _about(field: FieldInfo) -> str:
    facts = [field.description] if field.description else []
    default = field.get_default(call_default_factory=True)
    if not field.is_required() and not isinstance(default, BaseModel):
        facts.append(f"default {yaml_text(default)}")
    return f" ({'; '.join(facts)})" if facts else ""


def _field_at(
    model: type[BaseModel], location: Sequence[Any]
) -> tuple[FieldInfo | None, type[BaseModel]]:
    """Returns the field at a pydantic location, and the class that has or lacks it."""
    owner, field = model, None
    for part in location:
        if part == SCHEDULE:
            owner, field = Schedule, None
            continue
        if isinstance(part, int) or part in _NO_KEYS:
            continue  # an item of a list is described by the list's field
        if field is not None:
            inner = next(_models_in(field.annotation), None)
            if inner is None:
                return field, owner
            owner = inner
            if typing.get_origin(field.annotation) is dict:
                field = None  # the part is a name that the config chooses
                continue
        field = _by_key(owner).get(str(part))
        if field is None:
            break
    return field, owner


def _by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields config classes inside ``X | None``, ``tuple[X, ...]`` and similar types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def yaml_text(value: Any) -> str:
    """Formats a config value as YAML on one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, str):
        return value if value else '""'
    return json.dumps(value, default=str)
