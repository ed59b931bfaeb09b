"""Environments: they respond to the policy's answers until the episode is over.

An environment plays one episode: it reads the policy's answer, perhaps calls a tool, gives the
policy further input, and ends the episode when it chooses. It runs in its own process without JAX,
like rewards. It sees tokens and texts but never log-probs, so it cannot make them up; the
controller assembles the episode from the workers' replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from rlax_plugin.base.types import EMPTY, Finish, Prompt

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
    """

    tokens: np.ndarray
    text: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an episode.

    Attributes:
      text: text that rewards read; None: the last answer's text.
      rewards: one per turn, in the order in which the turns were sampled, credited at each turn's
        last token in addition to the reward functions; (): none.
      ended: "done", or "cut" if the episode was ended before it was over.
      metrics: further figures, by name; they are not used for training.
    """

    text: str | None = None
    rewards: tuple[float, ...] = ()
    ended: Literal["done", "cut"] = "done"
    metrics: Mapping[str, float] = EMPTY


class EpisodeLimit(Exception):
    """No further turn fits: ``rlax.episodes`` limits turns, tokens and trajectories.

    An environment may catch it and return an outcome; otherwise the episode is cut at this point.
    """


class Session(Protocol):
    """One episode, as its environment sees it.

    Attributes:
      answer: the answer to the prompt; the first turn is over before an environment is called.
      turns_left: number of further turns that ``sample`` may take.
      tokens_left: number of given and sampled tokens that fit after the newest answer.
    """

    answer: Answer
    turns_left: int
    tokens_left: int

    async def sample(self, given: Given, trajectory: int = 0) -> Answer:
        """Appends input after the policy's last answer, and returns the policy's next answer.

        Args:
          given: see ``Given``. Tokens sampled earlier are never encoded again.
          trajectory: 0, or a number returned by ``begin``.

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
    """

    deterministic: bool = False

    @abstractmethod
    def first(self, prompt: Prompt) -> np.ndarray:
        """The policy's first prompt, int32 [length]; the same for all samples of a group.

        Called in the trainer's process; must be pure and fast.
        """

    @abstractmethod
    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        """Plays an episode from its first answer on.

        After a restart the episode is played again from the beginning; as long as the environment
        gives the same input, ``sample`` returns the earlier answers.
        """


class PlayedEpisode(Protocol):
    """The controller's side of a ``Session``: it answers an environment's process.

    Attributes:
      index: index of the sample in its group.
      answer, turns_left, tokens_left: see ``Session``.
    """

    index: int

    @property
    def answer(self) -> Answer: ...

    @property
    def turns_left(self) -> int: ...

    @property
    def tokens_left(self) -> int: ...

    def begin_again(self) -> None:
        """Restarts after a lost process: the environment plays again from the first answer."""
        ...

    async def sample(self, given: Given, trajectory: int = 0) -> Answer:
        """See ``Session.sample``; raises the same, or an RlaxError that ends the run."""
        ...

    def begin(self, context: Given) -> int:
        """See ``Session.begin``."""
        ...
