"""Reads the prompts of a source, checks them, and makes their texts harmless.

Ids identify prompts: run state, records and pass rates know a prompt by its id alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import harmless, is_one_line, one_line, storable
from rlax_plugin.base.tokens.stopping import cut, problem_of
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.kept import only_kept
from rlax_plugin.data.prompts.table import JoinedPrompts, PromptTable
from rlax_plugin.ports.protocols import PromptSource

_LONGEST_ID = 256
_GROWTH = 16
_INCOMPLETE = "\ufffd"  # stands for the bytes of a character that are not all there yet


def stop_strings_of(source: PromptSource) -> tuple[str, ...]:
    """The stop strings of a prompt source.

    Raises:
      ConfigError: they cannot be used.
    """
    if problem := problem_of(source.stop_strings):
        raise ConfigError("rlax.prompt_source", type(source).__name__, f"has {problem}")
    return source.stop_strings


def completion_text(source: PromptSource, tokens: np.ndarray) -> str:
    """Text of sampled tokens, up to the stop string that ended them."""
    return cut(source.decode(tokens), source.stop_strings)


def whole_tokens(source: PromptSource, tokens: np.ndarray) -> int:
    """Returns the number of tokens before the last ones that alone are no text.

    Such tokens are single bytes. Some tokenizers turn all those that follow each other into
    U+FFFD, also the bytes of whole characters, if the next byte fits no character.
    """
    end = len(tokens)
    while end and _INCOMPLETE in source.decode(tokens[end - 1 : end]):
        end -= 1
    return end


def worth_decoding(tokens: int, before: int) -> bool:
    """True if an unfinished text is to be decoded again: its tokens are more by a sixteenth.

    It is decoded as a whole each time, and so costs at most 17 times its length in all.

    Args:
      before: the number of tokens when it was decoded last.
    """
    return tokens - before > before // _GROWTH


def stable(text: str, stop_strings: Sequence[str]) -> str:
    """Returns the part of an unfinished completion's text that further tokens do not change."""
    ends = (
        length
        for stop in stop_strings
        for length in range(1, len(stop))
        if text.endswith(stop[:length])
    )
    return text[: len(text) - max(ends, default=0)]


def read_prompts(source: PromptSource, split: str, key: str, value: str) -> Sequence[Prompt]:
    """The prompts of a split.

    Args:
      key, value: config key and value that choose them, for messages.

    Raises:
      ConfigError: the source has no such split, or its data cannot be read.
    """
    try:
        return source.prompts(split)
    except OSError as error:
        raise ConfigError(key, value, f"has prompts that cannot be read: {error}") from error


def training_prompts(
    section: RlaxSection,
    source: PromptSource,
    split: str = "train",
    note: Callable[[str], object] = lambda text: None,
) -> Sequence[Prompt]:
    """All prompts of a split; for training only those that ``rlax.curation.only`` keeps.

    Workers reject a prompt that does not fit, at the step that requests it.

    Args:
      note: called with the number of prompts kept.

    Raises:
      ConfigError: there are none, they cannot be read, none of them is kept, one is longer than
        the config allows, an id is not printable, or two different ones have one id.
    """
    key, name = "rlax.prompt_source", section.prompt_source.name
    prompts = checked_prompts(read_prompts(source, split, key, name), split, key, name)
    if not prompts:
        raise ConfigError(key, name, "has no prompts")
    if section.curation.only and split == "train":
        prompts = only_kept(prompts, section.curation.only, note)
    longest, limit = longest_prompt(prompts), section.rollouts.max_prompt_tokens
    if longest > limit:
        reason = f"must be at least {longest}, the tokens of the longest training prompt"
        raise ConfigError("rlax.rollouts.max_prompt_tokens", limit, reason)
    return prompts


def longest_prompt(prompts: Sequence[Prompt]) -> int:
    """Number of tokens of the longest prompt."""
    if isinstance(prompts, JoinedPrompts):
        return max(map(longest_prompt, prompts.parts.values()))
    if isinstance(prompts, PromptTable):
        return int(prompts.lengths.max())
    return max(len(prompt.tokens) for prompt in prompts)


def checked_prompts(given: Iterable[Prompt], split: str, key: str, source: str) -> Sequence[Prompt]:
    """Prompts of a source, with harmless texts and unique ids.

    A reference is only made storable, because its meaning is defined by source and rewards.

    Args:
      key: config key of their prompt source.
      source: its name.

    Raises:
      ConfigError: an id is not a short line of printable characters, or two different prompts have
        one id.
    """
    if isinstance(given, PromptTable):
        return given  # each of its prompts was checked when it was prepared
    found = []
    for number, prompt in enumerate(given):
        for field in ("id", "text", "reference"):
            if not isinstance(value := getattr(prompt, field), str):
                reason = f"prompt {number} has the {field} {value!r}: it must be text"
                raise ConfigError(key, source, reason)
        if not is_one_line(prompt.id, _LONGEST_ID):
            raise ConfigError(
                key,
                source,
                f"prompt {number} has the id {one_line(prompt.id, 80)!r}: an id must be one line "
                f"of at most {_LONGEST_ID} printable characters",
            )
        text, reference = harmless(prompt.text), storable(prompt.reference)
        if text is not prompt.text or reference is not prompt.reference:
            prompt = dataclasses.replace(prompt, text=text, reference=reference)
        found.append(prompt)
    if problem := contradiction(found):
        raise ConfigError(key, source, f"in split {split!r} {problem}")
    return found


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
        same = {
            "references": first.reference == prompt.reference,
            "texts": first.text == prompt.text,
            "tokens": np.array_equal(first.tokens, prompt.tokens),
        }
        if differing := [name for name, is_same in same.items() if not is_same]:
            return (
                f"two different prompts share the id {prompt.id[:80]!r} (other "
                f"{', '.join(differing)}); a resumed run finds prompts by their id and would mix "
                "them up: derive the id from the text and the reference"
            )
    return None


def first_of(prompts: Sequence[Prompt], count: int | None) -> Sequence[Prompt]:
    """The first ``count`` prompts; None: all."""
    if isinstance(prompts, PromptTable):
        return prompts.read(prompts.first(len(prompts) if count is None else count))
    return prompts[:count]
