"""Ids identify prompts: run state, records and pass rates know a prompt by its id alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlax_plugin.types import Prompt

_SHOWN = 40  # characters of a text in a message


def contradiction(prompts: Iterable[Prompt]) -> str | None:
    """Describes two different prompts with the same id; None if every id stands for one prompt.

    A prompt that occurs twice, with the same reference, text and tokens, is no contradiction: it
    is issued twice as often, and either of the two may be found by the id.

    Args:
      prompts: the prompts of one split.
    """
    known: dict[str, Prompt] = {}
    for prompt in prompts:
        first = known.setdefault(prompt.id, prompt)
        if first is prompt:
            continue
        for what in ("reference", "text"):
            one, other = getattr(first, what), getattr(prompt, what)
            if one != other:
                return _told(prompt.id, f"{what}s", *_shown(one, other))
        if not np.array_equal(first.tokens, prompt.tokens):
            one, other = (str(p.tokens.tolist()) for p in (first, prompt))
            return _told(prompt.id, "tokens", *_shown(one, other))
    return None


def _told(prompt_id: str, what: str, one: str, other: str) -> str:
    return (
        f"two different prompts share the id {prompt_id[:80]!r} ({what} {one} and {other}); a "
        "resumed run finds prompts by their id and would mix them up: derive the id from the text "
        "and the reference"
    )


def _shown(one: str, other: str) -> tuple[str, str]:
    """Both texts, shortened to the first difference."""
    shorter = min(len(one), len(other))
    differ = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    start = max(0, differ - _SHOWN // 2)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    end = start + _SHOWN
    return f"{'...' * (start > 0)}{text[start:end]!r}{'...' * (end < len(text))}"
