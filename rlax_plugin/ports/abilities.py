"""Reports which optional abilities of its kind a part has; ``rlax check-plugin`` shows this.

An ability is a small runtime-checkable protocol, and the code that uses it tests for it with
``isinstance``. This module lists all abilities of a part together, and those whose methods have
other arguments than their callers pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

type Ability = type[Any]  # a runtime-checkable protocol


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities found in a part; ``str()`` gives one line.

    Attributes:
      found: member names of the abilities that the part has.
      missing: member names of the abilities that it does not have.
      problems: one phrase for each fault in an ability that it has completely or partly.
    """

    found: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        said = {"found": self.found, "not implemented": self.missing}
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in said.items() if names)


def abilities_of(part: object, known: Sequence[Ability]) -> Abilities:
    """Looks for a kind's abilities in one of its parts; calls none of the part's methods.

    Args:
      known: the abilities, see ``Kind.abilities``.
    """
    found, missing, problems = [], [], []
    for ability in known:
        own = _own_members(ability, known)
        has = isinstance(part, ability)
        (found if has else missing).append(" and ".join(own))
        if has:
            problems += _misfits(part, ability)
        elif present := [name for name in own if _is_method(ability, name) and _has(part, name)]:
            absent = [name for name in members(ability) if not _has(part, name)]
            problems += [f"{' and '.join(present)} without {' and '.join(absent)}"] * bool(absent)
    return Abilities(tuple(found), tuple(missing), tuple(dict.fromkeys(problems)))


def members(ability: Ability) -> tuple[str, ...]:
    """Names of a protocol's own methods, properties and attributes."""
    names = [*vars(ability).get("__annotations__", {}), *vars(ability)]
    public = (name for name in dict.fromkeys(names) if not name.startswith("_"))
    return (*public, *(["__call__"] if "__call__" in vars(ability) else []))


def _own_members(ability: Ability, known: Sequence[Ability]) -> tuple[str, ...]:
    """Members of a protocol that belong to no other ability and therefore identify it."""
    others = {name for other in known if other is not ability for name in members(other)}
    return tuple(name for name in members(ability) if name not in others)


def _misfits(part: Any, ability: Ability) -> Iterator[str]:
    """One phrase for each method of a part whose arguments or result do not fit its callers."""
    for name in members(ability):
        if not _is_method(ability, name):
            continue  # to look at its value is up to who uses it
        expected = vars(ability)[name]
        if inspect.getattr_static(type(part), name, None) is expected:
            yield f"{name} is inherited from {ability.__name__}, which does nothing"
            continue
        method = part if name == "__call__" else getattr(part, name)
        taken = [one for one in inspect.signature(expected).parameters.values()][1:]
        if not _takes(method, taken):
            called = f"{name}({', '.join(one.name for one in taken)})"
            yield f"{name}{inspect.signature(method)} is called as {called}"
        if inspect.iscoroutinefunction(method) and not _may_wait(expected):
            yield f"{name} is a coroutine function, and is called without await"


def _may_wait(expected: Any) -> bool:
    """True if the result of a protocol's method is awaited, always or if it is awaitable."""
    returned = str(expected.__annotations__.get("return"))
    return inspect.iscoroutinefunction(expected) or "Awaitable" in returned


def _is_method(ability: Ability, name: str) -> bool:
    return inspect.isfunction(vars(ability).get(name))


def _has(part: object, name: str) -> bool:
    """True if the part has this member, as ``isinstance`` decides; evaluates no property."""
    return inspect.getattr_static(part, name, None) is not None


def _takes(method: Any, taken: Sequence[inspect.Parameter]) -> bool:
    """True if a method accepts these arguments, both with and without the optional ones."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # such as of a built-in function, which does not tell
        return True
    required = [one for one in taken if one.default is inspect.Parameter.empty]
    try:
        signature.bind(*required)
        signature.bind(*taken)
    except TypeError:
        return False
    return True
