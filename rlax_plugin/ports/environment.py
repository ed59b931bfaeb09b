"""Environments: they respond to the policy's answers until the episode is over.

An environment plays one episode: it reads the policy's answer, perhaps calls a tool, gives the
policy further input, and ends the episode when it chooses. It runs in its own process without JAX,
like rewards. It may read an answer's tokens and log-probs but returns none of them, so it cannot
make them up; the controller assembles the episode from the workers' replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import EMPTY, NO_VERSION, Finish, Prompt

_NO_CONTEXT = np.zeros(0, np.int32)

Given = Sequence[int] | str | Sequence[Mapping[str, Any]]
"""Input that an environment gives the policy.

Tokens; or a text (``PromptSource.encode_given``); or messages of a chat, each a mapping with
``role`` and ``content`` (``PromptSource.encode_messages``).
"""


def messages_of(given: Given) -> Sequence[Mapping[str, Any]] | None:
    """The given input as chat messages; None if it is tokens or a text."""
    is_chat = isinstance(given, list | tuple) and given and isinstance(given[0], Mapping)
    return given if is_chat else None  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy's answer in one turn.

    Attributes:
      tokens: int32 [length], the stop token included.
      text: decoded tokens, without stop tokens; it ends before a stop string.
      finish: "stop" (a stop token or string), or "length" (cut at the maximum number of tokens).
      logprobs: float32 [length], natural, of the distribution that was sampled from. Only for
        reading: what trains comes from the workers' replies.
      version: weight version of the last token.
    """

    tokens: np.ndarray
    text: str
    finish: Finish
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an episode.

    Attributes:
      text: text that rewards read; None: the last answer's text.
      rewards: one per turn, in the order in which the turns were sampled, credited at each turn's
        last token in addition to the reward functions; (): none.
      ended: "done", or "cut" if the episode was ended before it was over.
      metrics: further figures, by name; they are not used for training.
      reward: that of the episode as a whole, in addition to ``rewards``.
      ending: what the policy's answers have brought down, such as ``over_memory``, if the rewards
        here are therefore a wrong answer's; see ``Score.ending``. None: nothing.
    """

    text: str | None = None
    rewards: tuple[float, ...] = ()
    ended: Literal["done", "cut"] = "done"
    metrics: Mapping[str, float] = EMPTY
    reward: float = 0.0
    ending: Ending | None = None


class EpisodeLimit(Exception):
    """No further turn fits: ``rlax.episodes`` limits turns, tokens and trajectories.

    An environment may catch it and return an outcome; otherwise the episode is cut at this point.
    """


class Session(Protocol):
    """One episode, as its environment sees it.

    Attributes:
      turns_left: number of further turns that ``sample`` may take.
      tokens_left: number of given and sampled tokens that fit after the newest answer.
    """

    turns_left: int
    tokens_left: int

    @property
    def answer(self) -> Answer:
        """The answer to the prompt, which is there before an environment is called.

        Raises:
          ValueError: there is none, because the environment ``begins`` with ``play``.
        """
        ...

    async def sample(
        self,
        given: Given,
        trajectory: int = 0,
        *,
        most_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Appends input after the policy's last answer, and returns the policy's next answer.

        Args:
          given: see ``Given``. Tokens sampled earlier are never encoded again.
          trajectory: 0, or a number returned by ``begin``.
          most_tokens: maximum length of the answer; None: ``rlax.rollouts.max_new_tokens``, which
            it can only lower.
          tools: descriptions of the tools for messages that begin a trajectory, see
            ``PromptSource.encode_messages``.

        Raises:
          EpisodeLimit: no further turn fits.
          ValueError: the input cannot be encoded, a token is outside the model's vocabulary, or the
            trajectory's last answer has not arrived yet.
        """
        ...

    async def begin(self, context: Given) -> int:
        """Begins a further training sequence, such as that of a summary; returns its number.

        Its first turn is what ``sample(given, trajectory)`` samples after ``context + given``.

        Raises:
          EpisodeLimit: no further trajectory fits.
          ValueError: see ``sample``.
        """
        ...


class Environment(ABC):
    """Plays episodes; many run at once in one process, so it must wait with ``await`` only.

    Attributes:
      deterministic: True if an episode depends only on the prompt and on the policy's answers,
        which ``rlax.deterministic`` needs.
      begins: "prompt": the policy answers ``first`` before ``play`` is called. "play": it is asked
        for nothing before; trajectory 0 begins with what ``play`` samples in it first.
    """

    deterministic: bool = False
    begins: Literal["prompt", "play"] = "prompt"

    def first(self, prompt: Prompt) -> np.ndarray:
        """The policy's first prompt, int32 [length]; the same for all samples of a group.

        Called in the trainer's process, unless episodes begin with ``play``; must be pure and fast.
        By default it is the prompt's tokens.
        """
        return prompt.tokens

    def context(self, prompt: Prompt) -> np.ndarray:
        """The context of a group's first request; empty, and no request, if ``play`` begins."""
        return self.first(prompt) if self.begins == "prompt" else _NO_CONTEXT

    @abstractmethod
    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        """Plays an episode: from its first answer on, or from nothing, see ``begins``.

        After a restart the episode is played again from the beginning; as long as the environment
        gives the same input, ``sample`` returns the earlier answers.
        """


class PlayedEpisode(Protocol):
    """The controller's side of a ``Session``: it answers an environment's process.

    Attributes:
      index: index of the sample in its group.
      answer: the newest answer; None before the first one.
      turns_left, tokens_left: see ``Session``.
    """

    index: int

    @property
    def answer(self) -> Answer | None: ...

    @property
    def turns_left(self) -> int: ...

    @property
    def tokens_left(self) -> int: ...

    def begin_again(self) -> None:
        """Restarts after a lost process: the environment plays again from the beginning."""
        ...

    async def sample(
        self,
        given: Given,
        trajectory: int = 0,
        *,
        most_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """See ``Session.sample``; raises the same, or an RlaxError that ends the run."""
        ...

    def begin(self, context: Given) -> int:
        """See ``Session.begin``."""
        ...
