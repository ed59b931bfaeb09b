"""A tool as the loop sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlax_plugin.api import ConfigError


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of one episode.

    Attributes:
      description: in OpenAI's form.
      call: (arguments, seconds that it may take) -> the text of its result. Raises ``CallError``
        with the reason if the call is wrong; everything else that it raises is the tool's failure.
      own_limit: True if it ends in time by itself, and its result then says so: for what the
        policy can make hang.
      ready: starts what it needs, in a time of its own, before a call; None: nothing.
    """

    description: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], float], Awaitable[str]]
    own_limit: bool = False
    ready: Callable[[], Awaitable[Any]] | None = None

    @property
    def name(self) -> str:
        return self.description["function"]["name"]


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Returns name -> tool.

    Raises:
      ConfigError: two have the same name.
    """
    found: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in found:
            raise ConfigError("rlax.environment", tool.name, "is the name of two tools")
        found[tool.name] = tool
    return found
