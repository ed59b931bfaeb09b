"""Calls functions as rewards: gives each parameter by its name, and checks what comes back.

A function is called once for each sample, or once for the samples of a prompt. Parameters of a
group are lists with an entry for each sample, columns included, as TRL passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.errors import alternatives
from rlax_plugin.functions.returned import ReturnedError, number, numbers
from rlax_plugin.functions.signatures import GROUP, SAMPLE, Signature
from rlax_plugin.types import Episode, Prompt, Score

MESSAGES = "messages"
"""Metadata of a prompt whose question is a list of messages."""


def chosen(signature: Signature, known: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
    """Returns what a function is called with.

    Args:
      known: all values that it may take.

    Raises:
      ReturnedError: the prompt lacks a column that it needs.
    """
    for name in signature.required:
        if name not in known:
            reason = f"needs {name!r}, which prompt {prompt.id} does not have"
            raise ReturnedError(f"{signature.where} {reason}; {alternatives(name, known)}")
    if signature.rest:
        return dict(known)
    named = (*signature.required, *signature.optional)
    return {name: known[name] for name in named if name in known}


def of_sample(prompt: Prompt, text: str, tokens: Sequence[int]) -> dict[str, Any]:
    """Returns all values for one sample; the names of ``SAMPLE`` come before columns."""
    own = (text, prompt.text, prompt.reference, list(tokens), dict(prompt.metadata))
    return {**prompt.metadata, **dict(zip(SAMPLE, own, strict=True))}


def of_group(prompt: Prompt, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Returns all values for a group, each a list with an entry for each episode.

    If the question is a list of messages, ``prompts`` and ``completions`` are messages.
    """
    count = len(episodes)
    texts: list[Any] = [episode.text for episode in episodes]
    asked: Any = prompt.text
    if MESSAGES in prompt.metadata:
        asked = prompt.metadata[MESSAGES]
        texts = [[{"role": "assistant", "content": text}] for text in texts]
    tokens = [tokens_of(episode) for episode in episodes]
    same = (asked, prompt.reference, dict(prompt.metadata))
    prompts, references, metadata = ([one] * count for one in same)
    own = (texts, prompts, references, tokens, metadata)
    columns = {name: [value] * count for name, value in prompt.metadata.items()}
    return {**columns, **dict(zip(GROUP, own, strict=True))}


def tokens_of(episode: Episode) -> list[int]:
    """Returns the sampled tokens of all turns, in the order in which they were sampled."""
    tokens = [sampled.tokens for sampled in episode.sampled]
    if not tokens:
        return []
    return np.concatenate(tokens)[episode.tokens_in_time].tolist()


class _Reward:
    """A function as a reward.

    Attributes:
      abstains: True if it may give no score for a sample, by None.
      needs_tokens: True if tokens must be sent to the reward process.
    """

    abstains = False

    def __init__(self, function: Callable[..., Any], signature: Signature):
        self._function, self._signature = function, signature
        named = {*signature.required, *signature.optional}
        self.needs_tokens = signature.rest or bool(named & {"tokens", "completion_ids"})

    def _sample(self, prompt: Prompt, text: str, tokens: Sequence[int] = ()) -> dict[str, Any]:
        return chosen(self._signature, of_sample(prompt, text, tokens), prompt)

    def _value(self, value: Any) -> float | Score:
        return number(value, self._signature.where)


class SampleReward(_Reward):
    """A function of a completion's text."""

    def __call__(self, prompt: Prompt, completion: str) -> float | Score:
        return self._value(self._function(**self._sample(prompt, completion)))


class AsyncSampleReward(_Reward):
    """An async function of a completion's text."""

    async def __call__(self, prompt: Prompt, completion: str) -> float | Score:
        return self._value(await self._function(**self._sample(prompt, completion)))


class TokensReward(_Reward):
    """A function of a completion's tokens."""

    def score(self, prompt: Prompt, episode: Episode) -> float | Score:
        given = self._sample(prompt, episode.text, tokens_of(episode))
        return self._value(self._function(**given))


class AsyncTokensReward(_Reward):
    """An async function of a completion's tokens."""

    async def score(self, prompt: Prompt, episode: Episode) -> float | Score:
        given = self._sample(prompt, episode.text, tokens_of(episode))
        return self._value(await self._function(**given))


class GroupReward(_Reward):
    """A function of the samples of a prompt."""

    abstains = True

    def score_group(self, prompt: Prompt, episodes: Sequence[Episode]) -> Sequence[Any]:
        given = chosen(self._signature, of_group(prompt, episodes), prompt)
        return numbers(self._function(**given), len(episodes), self._signature.where)


class AsyncGroupReward(_Reward):
    """An async function of the samples of a prompt."""

    abstains = True

    async def score_group(self, prompt: Prompt, episodes: Sequence[Episode]) -> Sequence[Any]:
        given = chosen(self._signature, of_group(prompt, episodes), prompt)
        return numbers(await self._function(**given), len(episodes), self._signature.where)


def as_reward(function: Callable[..., Any], signature: Signature) -> _Reward:
    """Returns a function as a part of kind ``reward``."""
    if signature.form == "group":
        return (AsyncGroupReward if signature.waits else GroupReward)(function, signature)
    if signature.rest or "tokens" in (*signature.required, *signature.optional):
        return (AsyncTokensReward if signature.waits else TokensReward)(function, signature)
    return (AsyncSampleReward if signature.waits else SampleReward)(function, signature)
