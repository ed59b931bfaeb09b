"""The interface of a reward: which of its methods scores, and whether it is async."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlax_plugin.errors import PluginError
from rlax_plugin.ports.protocols import EpisodeReward, GroupReward, Reward
from rlax_plugin.types import Episode, Prompt

What = Literal["text", "episode", "group"]


@dataclass(frozen=True, slots=True)
class Form:
    """The call of a reward: its method, arguments and limits.

    Attributes:
      what: input of the reward: the text of an episode, the episode, or all episodes of a prompt.
      method: function to call with the prompt and this input.
      waits: True if it is an ``async`` function, of which many run at a time.
      weight: weight of its value in the total; see ``RewardChoice``.
      name: name for messages.
      limit: largest absolute value that it may return.
      abstains: True if it may return None for a sample: it gives it no score.
      tokens: True if it sees tokens.
    """

    what: What
    method: Callable[..., Any]
    waits: bool
    weight: float = 1.0
    name: str = "the reward"
    limit: float = math.inf
    abstains: bool = False
    tokens: bool = False

    def arguments(self, prompt: Prompt, episode: Episode) -> tuple[Any, ...]:
        """Returns the arguments for scoring one episode."""
        return prompt, episode.text if self.what == "text" else episode


def reweighted(forms: Sequence[Form], weights: Sequence[float] | None) -> Sequence[Form]:
    """Returns forms with other weights; None: as they are."""
    if weights is None:
        return forms
    return [replace(form, weight=weight) for form, weight in zip(forms, weights, strict=True)]


def form_of(
    reward: Any, weight: float = 1.0, name: str = "the reward", limit: float = math.inf
) -> Form:
    """Returns the form of a reward, the first of ``score_group``, ``score`` and ``__call__``.

    Raises:
      PluginError: it has none of them.
    """
    what: What
    if isinstance(reward, GroupReward):
        what, method = "group", reward.score_group
    elif isinstance(reward, EpisodeReward):
        what, method = "episode", reward.score
    elif isinstance(reward, Reward):
        what, method = "text", reward
    else:
        kind = type(reward).__name__
        reason = "cannot be called, and has neither score_group nor score"
        raise PluginError(f"{name}: a {kind} {reason}")
    abstains = getattr(reward, "abstains", False) is True
    tokens = bool(getattr(reward, "needs_tokens", what != "text"))
    return Form(what, method, _waits(method), weight, name, limit, abstains, tokens)


def _waits(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  of an object, it is what is called
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a process's rewards, which it reports once it has started.

    Attributes:
      group: True if a reward sees all episodes of a prompt at once.
      tokens: True if a reward sees tokens.
      waits: True if a reward is async.
    """

    group: bool = False
    tokens: bool = False
    waits: bool = False

    @classmethod
    def of(cls, forms: Sequence[Form]) -> Needs:
        return cls(
            group=any(form.what == "group" for form in forms),
            tokens=any(form.tokens for form in forms),
            waits=any(form.waits for form in forms),
        )
