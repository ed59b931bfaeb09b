"""An episode while it is played: its turns, its limits, and turns that were sampled earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.tokens.defects import outside
from rlax_plugin.base.types import Episode, Key, Sampled, Trajectory, Turn
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.checking import completion_text
from rlax_plugin.ports.environment import (
    Answer,
    EpisodeLimit,
    Given,
    PlayedEpisode,
    messages_of,
)
from rlax_plugin.ports.protocols import PromptSource

Ask = Callable[[Key, np.ndarray, int, int], Awaitable[Sampled]]
"""Maps (key, context, max_new_tokens, min_version) to the tokens sampled after the context."""

_MOST_TOKENS = 2**31


class VoidTurns(Exception):
    """The episodes of a group that are being played will not be used for training."""


class TurnLog(Protocol):
    """Records turns, so that a resumed run need not sample them again.

    Attributes:
      oldest: the oldest version whose tokens can train.
    """

    oldest: int

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        """Returns the turns of a group that an earlier process recorded."""
        ...

    def sampled(self, key: Key, turn: Turn) -> None:
        """Records a turn that was sampled."""
        ...

    def discarded(self, key: Key) -> None:
        """Records that a turn is void: the environment gave another input or did not request it."""
        ...

    async def unless_void[T](self, group: int, playing: asyncio.Future[T]) -> T:
        """Waits for the episodes of a group, and cancels them if they become void.

        Raises:
          VoidTurns: the episodes are void.
        """
        ...


class NoLog(TurnLog):
    """A log that records nothing, for episodes that are not used for training."""

    oldest = 0

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return ()

    def sampled(self, key: Key, turn: Turn) -> None: ...

    def discarded(self, key: Key) -> None: ...

    async def unless_void[T](self, group: int, playing: asyncio.Future[T]) -> T:
        return await playing


class Playing(PlayedEpisode):
    """An episode while it is played; see ``PlayedEpisode``.

    After the environment's process or the trainer's was lost, the episode is played again. Turns
    are then answered from the recorded ones as long as the environment gives the same inputs, and
    none is longer than it may be now. From the first difference on the recorded turns are void. So
    are those that the environment has not requested when the episode ends.

    With ``rlax.deterministic``, answers come in the order in which they were requested, because
    their order decides which rewards reach which tokens.

    Args:
      key: key of the episode's first turn.
      first: the first turn, if it was sampled before; None: the environment begins.
      known: other turns that an earlier process sampled.
      vocabulary: vocabulary size, which token ids must be below; 0: unknown.
      ask: requests the sampling of a turn.
      keep: returns what is kept of a turn when the episode is over.
    """

    def __init__(
        self,
        section: RlaxSection,
        source: PromptSource,
        key: Key,
        first: Turn | None,
        *,
        ask: Ask,
        log: TurnLog,
        known: Sequence[tuple[Key, Turn]] = (),
        vocabulary: int = 0,
        keep: Callable[[Turn], Turn] = lambda turn: turn,
    ):
        assert key.sample is not None
        self._section, self._source, self.key = section, source, key
        self._first, self._ask, self._log, self._keep = first, ask, log, keep
        self.index = key.sample
        self._vocabulary = vocabulary or _MOST_TOKENS
        self._known = {(key.trajectory, key.turn): turn for key, turn in known}
        self._turns: list[list[Turn]] = []
        self._contexts: list[np.ndarray] = []  # what a trajectory's first turn was given before
        self._order: list[tuple[int, int]] = []  # trajectory and turn, as they were answered
        self._asked: set[int] = set()  # trajectories that a turn is being sampled of
        self._held: dict[tuple[int, int], Turn] = {}  # recorded turns that wait for an earlier one
        self._told = asyncio.Event()  # the answer to what was asked last
        self.begin_again()

    def begin_again(self) -> None:
        for number, turns in enumerate(self._turns):
            for index, turn in enumerate(turns):
                self._known[number, index] = turn
        self._known |= self._held
        self._turns, self._contexts = [[]], [np.zeros(0, np.int32)]
        self._order, self._asked, self._held = [], set(), {}
        if self._first is not None:
            self._known.pop((0, 0), None)
            self._turns[0].append(self._first)
            self._order.append((0, 0))
        self._told = asyncio.Event()
        self._told.set()
        self._newest: Answer | None = None
        self._last = 0

    # --- what the environment sees -------------------------------------------------------------

    @property
    def answer(self) -> Answer | None:
        if self._newest is None and self._first is not None:
            self._newest = self._answer(self._first.sampled)
        return self._newest

    def _answer(self, sampled: Sampled) -> Answer:
        assert sampled.finish is not None
        text, version = self._said(sampled), int(sampled.versions[-1])
        return Answer(sampled.tokens, text, sampled.finish, sampled.logprobs, version)

    @property
    def turns_left(self) -> int:
        return self._section.episodes.max_turns - len(self._order) - len(self._asked)

    @property
    def tokens_left(self) -> int:
        """Number of tokens that may still follow the newest answer."""
        return self._left(self._last)

    def _left(self, trajectory: int, first: int | None = None) -> int:
        """Returns the number of tokens that fit into a trajectory after those that it has.

        Args:
          first: number of tokens that begin trajectory 0; None: as many as may.
        """
        begun = len(self._contexts[trajectory])
        if trajectory == 0 and self._turns[0]:
            begun = len(self._turns[0][0].given)
        elif trajectory == 0:
            begun = self._section.rollouts.max_prompt_tokens if first is None else first
        most = min(begun + self._section.episode_tokens, self._section.sequence_tokens)
        length = sum(len(t.given) + len(t.sampled.tokens) for t in self._turns[trajectory])
        return most - (length or len(self._contexts[trajectory]))

    def _context(self, trajectory: int) -> np.ndarray:
        parts = [p for t in self._turns[trajectory] for p in (t.given, t.sampled.tokens)]
        return np.concatenate(parts) if parts else self._contexts[trajectory]

    def begin(self, context: Given) -> int:
        tokens = self._tokens(context, None)
        asked = self._asked
        begun = sum(not turns and one not in asked for one, turns in enumerate(self._turns))
        if len(self._turns) >= (most := self._section.episode_trajectories):
            raise EpisodeLimit(
                f"an episode has at most {most} trajectories: rlax.episodes.max_trajectories sets "
                "the limit"
            )
        self._check_first(tokens)
        if self.turns_left <= begun:
            raise EpisodeLimit("a further trajectory would have no turn: rlax.episodes.max_turns")
        self._turns.append([])
        self._contexts.append(tokens)
        return len(self._turns) - 1

    def _check_first(self, tokens: np.ndarray) -> None:
        if len(tokens) > (most := self._section.rollouts.max_prompt_tokens):
            raise EpisodeLimit(
                f"a sequence cannot begin with {len(tokens)} tokens: "
                f"rlax.rollouts.max_prompt_tokens is {most}"
            )

    async def sample(
        self,
        given: Given,
        trajectory: int = 0,
        *,
        most_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        if most_tokens is not None and most_tokens < 1:
            raise ValueError(f"an answer has at least one token, not {most_tokens}")
        if not 0 <= trajectory < len(self._turns):
            raise ValueError(f"trajectory {trajectory}: there are {len(self._turns)}")
        if trajectory in self._asked:
            raise ValueError(f"trajectory {trajectory}: its last answer is not there yet")
        turns, before = self._turns[trajectory], self._context(trajectory)
        if messages_of(given) and not turns and len(before):
            raise ValueError("messages cannot follow a context: begin with all of them")
        tokens = self._tokens(given, turns[-1].sampled.tokens if turns else None, tools)
        if not turns and trajectory == 0:
            self._check_first(tokens)
        left = self._left(trajectory, len(tokens)) - len(tokens)
        if self.turns_left < 1 or left < 1:
            raise EpisodeLimit(
                f"{len(tokens)} tokens are given, room is left for {self.turns_left} turns and "
                f"{max(0, left)} tokens: rlax.episodes sets the limits"
            )
        if not turns:
            tokens = np.concatenate([before, tokens])
        context = np.concatenate([before, tokens]) if turns else tokens
        if not len(context):
            raise ValueError("nothing is given to go on from")
        key = self.key._replace(trajectory=trajectory, turn=len(turns))
        most = min(self._section.rollouts.max_new_tokens, left, most_tokens or left)
        turn = self._known.pop((trajectory, len(turns)), None)
        if turn is not None and (
            not np.array_equal(turn.given, tokens) or len(turn.sampled.tokens) > most
        ):
            self._log.discarded(key)
            self._discard()
            turn = None
        # Of this attempt. No wait here is longer than that for an answer of the policy, which has
        # its deadlines.
        asked, held, place = self._asked, self._held, (trajectory, len(turns))
        earlier, told = self._told, asyncio.Event()
        self._told = told
        asked.add(trajectory)
        try:
            if turn is None:
                oldest = max((int(t.sampled.versions[-1]) for t in turns), default=0)
                sampled = await self._ask(key, context, most, oldest)
                turn = Turn(tokens, sampled)
                self._log.sampled(key, turn)
            answer = self._answer(turn.sampled)
            if self._section.deterministic:
                held[place] = turn
                await earlier.wait()
                del held[place]
        finally:
            asked.discard(trajectory)
            told.set()
        self._order.append(place)
        turns.append(turn)
        self._newest, self._last = answer, trajectory
        return answer

    def _discard(self) -> None:
        """Discards recorded later turns."""
        for trajectory, turn in self._known:
            self._log.discarded(self.key._replace(trajectory=trajectory, turn=turn))
        self._known.clear()

    def _tokens(
        self, given: Given, after: np.ndarray | None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> np.ndarray:
        if (messages := messages_of(given)) is not None:
            with_tools = {"tools": tools} if tools else {}
            given = self._source.encode_messages(messages, after, **with_tools)
        elif isinstance(given, str):
            given = self._source.encode_given(given)
        tokens = np.asarray(given, np.int64).reshape(-1)
        if len(tokens) and (why := outside(tokens, self._vocabulary)):
            raise ValueError(why)
        return tokens.astype(np.int32)

    def _said(self, sampled: Sampled) -> str:
        return harmless(completion_text(self._source, sampled.tokens))

    # --- when it is over -----------------------------------------------------------------------

    def episode(self, text: str | None, *, cut: bool) -> Episode:
        """Returns the episode, assembled from the turns that the workers sampled.

        Args:
          text: text that rewards read; None: the text of the newest answer, or "" without one.
        """
        self._known |= self._held
        self._held.clear()
        self._discard()
        kept = [turns for turns in self._turns if turns]
        trajectories = tuple(Trajectory(tuple(map(self._keep, turns))) for turns in kept)
        texts, answer = list[str](), self.answer
        if sum(map(len, kept)) > 1:
            for turn in (turn for turns in kept for turn in turns):
                given = harmless(self._source.decode(turn.given)) if texts else ""
                texts += [given, self._said(turn.sampled)]
        return Episode(
            index=self.index,
            trajectories=trajectories,
            text=harmless(text) if text is not None else answer.text if answer else "",
            ended=Ending.CUT if cut else Ending.DONE,
            texts=tuple(texts[1:]),
            order=self._places_in_time(),
        )

    def _places_in_time(self) -> tuple[int, ...]:
        """Returns the order in which turns were answered; see ``Episode.order``."""
        of_turn = {turn: place for place, turn in enumerate(self._order)}
        places = tuple(of_turn[turn] for turn in sorted(of_turn))
        return () if places == tuple(range(len(places))) else places

    def of_turns(self, rewards: Sequence[float]) -> list[float]:
        """Returns rewards, given in the order of the answers, in the order of the rows."""
        return [reward for _, reward in sorted(zip(self._order, rewards, strict=True))]
