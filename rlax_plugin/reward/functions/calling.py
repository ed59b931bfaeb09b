"""Functions as rewards and filters: what they are called with, and what they may return.

A reward is called once for each sample, or once for the samples of a prompt. Parameters of a group
are lists with an entry for each sample, columns included, as TRL passes them. What it returns is
taken exactly: nothing is converted by guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlax_plugin.base.errors import alternatives
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import Episode, Prompt, Score, ScoredGroup
from rlax_plugin.config import FunctionOptions
from rlax_plugin.config.functions import parse_function
from rlax_plugin.ports.protocols import BuildContext, Extension
from rlax_plugin.reward.functions.checking import checked_signature
from rlax_plugin.reward.functions.signatures import (
    FILTER,
    GROUP,
    SAMPLE,
    Signature,
    function_of,
    signature_of,
)

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_SHOWN = 80  # characters of a value


class ReturnedError(ValueError):
    """A function returned something that is no value of its form; names function, file and line."""


def number(value: Any, where: str, at: str = "") -> float | Score:
    """Returns the value of one sample.

    Args:
      where: function, file and line.
      at: place of the value in a list that it returned.

    Raises:
      ReturnedError: it is neither a finite number, true or false, nor a ``Score``.
    """
    if isinstance(value, Score):
        return value
    if not isinstance(value, _NUMBERS):
        reason = "must return a number, such as 1.0, or True or False"
        if at:
            reason = "must return a list of numbers, or of None for samples without a score"
        raise ReturnedError(f"{where} returned {_shown(value)}{at}: it {reason}")
    try:
        exact = float(value)
    except OverflowError:
        raise ReturnedError(f"{where} returned a whole number that is too large{at}") from None
    if not math.isfinite(exact):
        raise ReturnedError(f"{where} returned {exact}{at}: it must return a finite number")
    return exact


def numbers(values: Any, count: int, where: str) -> list[float | Score | None]:
    """Returns the values of a group.

    Args:
      count: number of its samples.

    Raises:
      ReturnedError: it is no list of this length, or an entry is neither a number nor None.
    """
    right = f"it must return a list of {count} numbers, one for each completion"
    if isinstance(values, np.ndarray):
        if values.shape != (count,):
            shape = f"an array of shape {list(values.shape)}"
            raise ReturnedError(f"{where} returned {shape}: {right}")
        values = list(values)
    if not isinstance(values, list | tuple):
        hint = "; call .tolist()" if hasattr(values, "tolist") else ""
        raise ReturnedError(f"{where} returned {_shown(values)}: {right}{hint}")
    if len(values) != count:
        raise ReturnedError(f"{where} returned {len(values)} values: {right}")
    return [
        None if value is None else number(value, where, f" at place {index}")
        for index, value in enumerate(values)
    ]


def verdict(value: Any, where: str, name: str) -> str | None:
    """Returns the reason for which a filter rejects a group; None if it accepts it.

    Args:
      name: the reason if it returned False.

    Raises:
      ReturnedError: it is neither True, False, None nor a text.
    """
    if value is None or value is True or (isinstance(value, np.bool_) and value):
        return None
    if value is False or isinstance(value, np.bool_):
        return name
    if isinstance(value, str) and value.strip():
        return value
    raise ReturnedError(
        f"{where} returned {_shown(value)}: it must return True or None to accept the group, and "
        "False or a text, the reason, to reject it"
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a ``__repr__`` of the user's may raise anything
        return f"a {type(value).__name__}"
    if value is None:
        return "None"
    return f"{one_line(text, _SHOWN)} ({type(value).__name__})"


MESSAGES = "messages"
"""Metadata of a prompt whose question is a list of messages."""


def chosen(signature: Signature, values: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
    """Returns the arguments of a function.

    Args:
      values: all that it may take.

    Raises:
      ReturnedError: the prompt lacks a column that it needs.
    """
    for name in signature.required:
        if name not in values:
            reason = f"needs {name!r}, which prompt {prompt.id} does not have"
            raise ReturnedError(f"{signature.where} {reason}; {alternatives(name, values)}")
    if signature.rest:
        return dict(values)
    named = (*signature.required, *signature.optional)
    return {name: values[name] for name in named if name in values}


def of_sample(prompt: Prompt, episode: Episode) -> dict[str, Any]:
    """Returns all values for one sample; the names of ``SAMPLE`` come before columns."""
    tokens, metadata = tokens_of(episode), dict(prompt.metadata)
    own = (episode.text, prompt.text, prompt.reference, tokens, metadata)
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
    prompts, references, metadata = ([value] * count for value in same)
    own = (texts, prompts, references, tokens, metadata)
    columns = {name: [value] * count for name, value in prompt.metadata.items()}
    return {**columns, **dict(zip(GROUP, own, strict=True))}


def tokens_of(episode: Episode) -> list[int]:
    """Returns the sampled tokens of all turns, in the order in which they were sampled."""
    tokens = [sampled.tokens for sampled in episode.sampled]
    if not tokens:
        return []
    return np.concatenate(tokens)[episode.tokens_in_time].tolist()


def as_reward(function: Callable[..., Any], signature: Signature) -> Any:
    """Returns a function as a part of kind ``reward``, in the form that its parameters name."""
    named = {*signature.required, *signature.optional}
    tokens = signature.rest or bool(named & {"tokens", "completion_ids"})
    if signature.form == "group":

        def for_group(prompt: Prompt, episodes: Sequence[Episode]) -> dict[str, Any]:
            return chosen(signature, of_group(prompt, episodes), prompt)

        def values(returned: Any, prompt: Prompt, episodes: Sequence[Episode]) -> list[Any]:
            return numbers(returned, len(episodes), signature.where)

        call = _calling(function, signature.waits, for_group, values)
        return SimpleNamespace(score_group=call, abstains=True, needs_tokens=tokens)

    def for_sample(prompt: Prompt, episode: Episode) -> dict[str, Any]:
        return chosen(signature, of_sample(prompt, episode), prompt)

    def value(returned: Any, *_: Any) -> float | Score:
        return number(returned, signature.where)

    call = _calling(function, signature.waits, for_sample, value)
    return SimpleNamespace(score=call, needs_tokens=tokens)


def _calling(
    function: Callable[..., Any],
    waits: bool,
    arguments: Callable[..., dict[str, Any]],
    checked: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns a method of a reward, async if the function is."""

    async def awaited(*samples: Any) -> Any:
        return checked(await function(**arguments(*samples)), *samples)

    def called(*samples: Any) -> Any:
        return checked(function(**arguments(*samples)), *samples)

    return awaited if waits else called


class FunctionFilter:
    """A function as a filter.

    Args:
      label: the reason for which it rejects a group if it returns False.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, label: str):
        self._function, self._signature, self._label = function, signature, label

    def reject(self, group: ScoredGroup) -> str | None:
        """Returns the reason to reject a group; None: it is accepted."""
        arguments = chosen(self._signature, of_scored(group), group.prompt)
        return verdict(self._function(**arguments), self._signature.where, self._label)


def of_scored(group: ScoredGroup) -> dict[str, Any]:
    """Returns all values for a filter; the names of ``FILTER`` come before columns."""
    prompt, episodes = group.prompt, group.episodes
    own = (
        [episode.text for episode in episodes],
        [None if math.isnan(reward) else reward for reward in group.rewards.tolist()],
        prompt.text,
        prompt.reference,
        [episode.tokens for episode in episodes],
        [bool(episode.truncated) for episode in episodes],
        group.pass_rate_before,
        dict(prompt.metadata),
    )
    return {**prompt.metadata, **dict(zip(FILTER, own, strict=True))}


def _loaded(options: FunctionOptions, kind: str, context: BuildContext) -> tuple[Any, Signature]:
    """Executes the file in this process; returns the function and its signature."""
    name = parse_function(options.function)
    path = context.functions.get(name.file, name.file)
    function = function_of(path, name.module, name.name)
    return function, signature_of(function, name.name, kind, name.file)


def _reward(options: FunctionOptions, context: BuildContext) -> Any:
    return as_reward(*_loaded(options, "reward", context))


def _filter(options: FunctionOptions, context: BuildContext) -> Any:
    label = options.label or parse_function(options.function).name
    return FunctionFilter(*_loaded(options, "filter", context), label)


def _check_start(kind: str) -> Callable[[FunctionOptions, BuildContext], None]:
    def check_start(options: FunctionOptions, context: BuildContext) -> None:
        deadline_s = context.section.deadlines.startup_s
        checked_signature(options.function, kind, context.functions, deadline_s)

    return check_start


EXTENSIONS: Mapping[str, Extension] = {
    "reward": Extension(FunctionOptions, _reward, check_start=_check_start("reward")),
    "filter": Extension(FunctionOptions, _filter, check_start=_check_start("filter")),
}
"""Kind -> the part that calls a function."""
