"""What a reward looks like from outside: which of its methods scores, and whether it is async."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlax_plugin.errors import PluginError
from rlax_plugin.ports.protocols import EpisodeReward, GroupReward, Reward
from rlax_plugin.types import Episode, Prompt

What = Literal["text", "episode", "group"]


@dataclass(frozen=True, slots=True)
class Form:
    """How a reward is called.

    Attributes:
      what: it sees the text of an episode, the episode, or all episodes of a prompt at once.
      method: takes the prompt, and that.
      waits: whether it is an ``async`` function, of which many run at a time.
      weight: of its value in the total; see ``RewardChoice``.
      name: for messages.
      limit: largest absolute value that it may return.
    """

    what: What
    method: Callable[..., Any]
    waits: bool
    weight: float = 1.0
    name: str = "the reward"
    limit: float = math.inf

    def arguments(self, prompt: Prompt, episode: Episode) -> tuple[Any, ...]:
        """To score one episode with."""
        return prompt, episode.text if self.what == "text" else episode


def form_of(
    reward: Any, weight: float = 1.0, name: str = "the reward", limit: float = math.inf
) -> Form:
    """The form of a reward: the first that it has of ``score_group``, ``score`` and ``__call__``.

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
    return Form(what, method, _waits(method), weight, name, limit)


def _waits(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  of an object, it is what is called
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """What the rewards of a process need, as it says once it has started.

    Attributes:
      group: they see all episodes of a prompt at once.
      tokens: they see tokens.
      waits: one of them is async.
    """

    group: bool = False
    tokens: bool = False
    waits: bool = False

    @classmethod
    def of(cls, forms: Sequence[Form]) -> Needs:
        return cls(
            group=any(form.what == "group" for form in forms),
            tokens=any(form.what != "text" for form in forms),
            waits=any(form.waits for form in forms),
        )
