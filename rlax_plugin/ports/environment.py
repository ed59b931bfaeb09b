"""Environments: what a prompt's answer leads to, until the episode is over.

An environment plays one episode: it reads what the policy has answered, perhaps calls a tool, gives
the policy something to go on from, and ends the episode when it likes. It runs in a process of its
own without JAX, beside rewards. It sees tokens and texts and never a log-prob, so that it cannot
invent one; the controller puts the episode together from what the workers have returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from rlax_plugin.types import EMPTY, Finish, Prompt

Given = Sequence[int] | str | Sequence[Mapping[str, Any]]
"""Tokens; or a text (``GivenTextEncoder``); or messages of a chat, each a mapping with
``role`` and ``content`` (``MessageEncoder``)."""


def messages_of(given: Given) -> Sequence[Mapping[str, Any]] | None:
    """The messages, where what is given are messages."""
    is_chat = isinstance(given, list | tuple) and given and isinstance(given[0], Mapping)
    return given if is_chat else None  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy has sampled in one turn.

    Attributes:
      tokens: int32 [length], the stop token included.
      text: what they say, without stop tokens; it ends before a stop string.
      finish: "stop" (a stop token or string), or "length": it was cut at the most tokens allowed.
    """

    tokens: np.ndarray
    text: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an episode came to.

    Attributes:
      text: what rewards read; None: the last answer's text.
      rewards: one per turn, in the order in which they were sampled, paid at each turn's last token
        in addition to what rewards give; (): none.
      ended: "done", or "cut" where the episode was ended before it was over.
      metrics: further figures, by name; they do not train.
    """

    text: str | None = None
    rewards: tuple[float, ...] = ()
    ended: Literal["done", "cut"] = "done"
    metrics: Mapping[str, float] = EMPTY


class EpisodeLimit(Exception):
    """No further turn fits: ``rlax.episodes`` limits turns, tokens and trajectories.

    An environment may catch it and return an outcome; otherwise the episode is cut there.
    """


class Session(Protocol):
    """One episode, as its environment sees it.

    Attributes:
      answer: to the prompt: the first turn is over before an environment is asked.
      turns_left: further turns that ``sample`` may take.
      tokens_left: tokens that fit behind the newest answer, given and sampled.
    """

    answer: Answer
    turns_left: int
    tokens_left: int

    async def sample(self, given: Given, trajectory: int = 0) -> Answer:
        """Gives the policy something behind its last answer, and returns what it samples next.

        Args:
          given: see ``Given``. What was sampled before is never encoded again.
          trajectory: 0, or what ``begin`` has returned.

        Raises:
          EpisodeLimit: no further turn fits.
          ValueError: it cannot be encoded, a token is none of the model's, or the trajectory's last
            answer is not there yet.
        """
        ...

    async def begin(self, context: Given) -> int:
        """Begins a further sequence that trains, such as that of a summary; returns its number.

        Its first turn is what ``sample(given, trajectory)`` samples behind ``context + given``.

        Raises:
          EpisodeLimit: no further trajectory fits.
          ValueError: see ``sample``.
        """
        ...


class Environment(Protocol):
    """Plays episodes; many of one process at a time, so it waits with ``await`` only.

    It may be a ``DeterministicEnvironment``; else ``rlax.deterministic`` is rejected.
    """

    def first(self, prompt: Prompt) -> np.ndarray:
        """int32 [length], what the policy is asked first; the same for all samples of a group.

        Called in the trainer's process; pure, and fast.
        """
        ...

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        """Plays an episode from its first answer on.

        After a kill it is played again from the beginning; as long as it gives the same, ``sample``
        returns what was sampled before.
        """
        ...


@runtime_checkable
class DeterministicEnvironment(Protocol):
    """An environment that says whether its episodes can be repeated.

    Attributes:
      deterministic: whether an episode depends on the prompt and on the policy's answers alone.
    """

    @property
    def deterministic(self) -> bool: ...


def is_deterministic(environment: Environment) -> bool:
    """Whether an environment says that its episodes can be repeated."""
    return isinstance(environment, DeterministicEnvironment) and environment.deterministic


class PlayedEpisode(Protocol):
    """The controller's side of a ``Session``: what it answers to an environment's process.

    Attributes:
      index: of the sample in its group.
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
        """Its process was lost: the environment plays from the first answer on once more."""
        ...

    async def sample(self, given: Given, trajectory: int = 0) -> Answer:
        """See ``Session.sample``; raises what that raises, or an RlaxError that ends the run."""
        ...

    def begin(self, context: Given) -> int:
        """See ``Session.begin``."""
        ...
