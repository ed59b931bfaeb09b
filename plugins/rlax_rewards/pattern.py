"""The reward ``format``: the completion matches a regular expression."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import regex
from pydantic import AfterValidator, Field

from rlax_plugin.api import Prompt, Reward, Seconds, Section


def _compiles(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return pattern


class FormatConfig(Section):
    """1 if the completion matches a pattern, and has some texts exactly once, else 0."""

    pattern: Annotated[str, AfterValidator(_compiles)] = Field(
        description="regular expression, as in Python's re; (?s) at its beginning lets . match "
        "line breaks"
    )
    match: Literal["full", "search"] = Field(
        "full", description="full: the whole completion must match; search: a part of it"
    )
    once: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="texts that must occur exactly once, such as tags"
    )
    timeout_s: Seconds = Field(
        1.0, description="limit for one match; a completion that takes longer does not match"
    )


class Format(Reward):
    """1.0 if the completion matches, else 0.0.

    A pattern such as ``<a>.*</a>`` also matches a text that prints the tags many times: name the
    tags in ``once`` to reject that.
    """

    def __init__(self, config: FormatConfig):
        self._config, self._pattern = config, regex.compile(config.pattern)
        self._said = False

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion; one on which the pattern backtracks too long does not match."""
        config = self._config
        if any(completion.count(text) != 1 for text in config.once):
            return 0.0
        match = self._pattern.fullmatch if config.match == "full" else self._pattern.search
        try:
            return float(match(completion, timeout=config.timeout_s) is not None)
        except (TimeoutError, MemoryError):
            return self._given_up()

    def _given_up(self) -> float:
        if not self._said:
            self._said = True
            print(
                f"matching {self._config.pattern!r} took longer than timeout_s = "
                f"{self._config.timeout_s:g} s, or too much memory: such completions get 0",
                file=sys.stderr,
            )
        return 0.0
