"""Records, rule by rule, which rules of its contract a part fulfils, and the faults found."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ContractError, Finding
from rlax_plugin.ports.abilities import abilities_of

_POLL_S = 0.02


class Broken(Exception):
    """A rule is broken; the text says what was found."""


def require(holds: Any, found: str) -> None:
    """Ends a rule with ``found`` as its fault unless ``holds`` is true."""
    if not holds:
        raise Broken(found)


@dataclass
class Inspection:
    """One part under inspection.

    Attributes:
      where: plug-in, hook and name, for messages.
      rules: rules that were tried, one phrase each.
      findings: broken rules.
      abilities: optional ones of its kind that it has and does not have; "" if its kind has none.
    """

    where: str
    rules: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    abilities: str = ""

    @contextmanager
    def rule(self, expected: str, mend: str) -> Iterator[None]:
        """Tries one rule; an exception of its body becomes a finding, and the next rule follows.

        Args:
          expected: the rule, a phrase.
          mend: advice for a part that breaks the rule.
        """
        self.rules.append(expected)
        try:
            yield
        except Broken as broken:
            self.findings.append(Finding(self.where, expected, str(broken), mend))
        except Exception as error:  # noqa: BLE001  it becomes a finding
            self.findings.append(Finding(self.where, expected, f"it raised {told(error)}", mend))

    def look(self, built: object, base: type) -> None:
        """Looks for optional members of a kind's base class, and checks that they fit callers."""
        abilities = abilities_of(built, base)
        self.abilities = str(abilities)
        if abilities.found:
            with self.rule(
                "optional abilities are implemented as they are called",
                f"give each method the arguments of rlax_plugin.api.{base.__name__}, or remove it",
            ):
                require(not abilities.problems, "; ".join(abilities.problems))

    @property
    def sound(self) -> bool:
        """True if no fault has been found so far."""
        return not self.findings

    def close(self) -> tuple[str, ...]:
        """The fulfilled rules.

        Raises:
          ContractError: a rule is broken.
        """
        if self.findings:
            raise ContractError(self.findings)
        return tuple(self.rules)


def told(error: BaseException) -> str:
    """Formats an exception in one line, with the line of code that raised it."""
    if isinstance(error, TimeoutError) and not str(error):
        return "TimeoutError: it did not end within the deadline"
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}{place}"


def run_async(scenario: Callable[[], Awaitable[None]], deadline_s: float) -> None:
    """Runs a scenario on an event loop of its own.

    Raises:
      TimeoutError: it takes longer than the deadline.
    """

    async def within() -> None:
        async with asyncio.timeout(deadline_s):
            await scenario()

    asyncio.run(within())


async def eventually(condition: Callable[[], Any], deadline_s: float) -> bool:
    """True once a condition holds, within the deadline; for events without a signal."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
