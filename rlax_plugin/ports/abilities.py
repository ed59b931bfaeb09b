"""The optional members of a kind's base class that a part has; ``rlax check-plugin`` shows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Abilities:
    """The optional members of a part; ``str()`` gives one line.

    Attributes:
      found: names of those that its class defines.
      missing: names of those that it inherits from the base class, whose methods do nothing.
      problems: one phrase for each method that does not fit its callers.
    """

    found: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lists = {"found": self.found, "not implemented": self.missing}
        return "; ".join(f"{title}: {', '.join(names)}" for title, names in lists.items() if names)


def abilities_of(part: object, base: type) -> Abilities:
    """Looks for a kind's optional members in one of its parts; calls none of them.

    Args:
      base: the base class of the kind.
    """
    names = [name for name in vars(base) if not name.startswith("_")]
    optional = [name for name in names if not getattr(vars(base)[name], "__isabstractmethod__", 0)]
    found = [name for name in optional if has(part, base, name)]
    missing = [name for name in optional if name not in found]
    problems = [problem for name in found for problem in _misfits(part, vars(base)[name], name)]
    return Abilities(tuple(found), tuple(missing), tuple(problems))


def has(part: object, base: type, name: str) -> bool:
    """True if a part does not have this member from its base class."""
    return inspect.getattr_static(part, name) is not inspect.getattr_static(base, name)


def _misfits(part: Any, expected: Any, name: str) -> Iterator[str]:
    """One phrase for each way in which a method does not fit its callers."""
    if not inspect.isfunction(expected):
        return  # a user of the value looks at it
    method = getattr(part, name)
    taken = [*inspect.signature(expected).parameters.values()][1:]
    if not _takes(method, taken):
        called = f"{name}({', '.join(one.name for one in taken)})"
        yield f"{name}{inspect.signature(method)} is called as {called}"
    if inspect.iscoroutinefunction(method) and not inspect.iscoroutinefunction(expected):
        yield f"{name} is a coroutine function, and is called without await"


def _takes(method: Any, taken: list[inspect.Parameter]) -> bool:
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
