"""Answers to a prompt, from a turn to the batch that trains on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types.sampled import EMPTY, Prompt, Sampled


@dataclass(frozen=True, slots=True)
class Turn:
    """Given tokens, and the tokens that the policy sampled after them.

    Attributes:
      given: int32 [given_length], never trains; for the first turn the prompt's own tokens.
      sampled: complete; all its tokens train.
    """

    given: np.ndarray
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sequence to train on: each turn's ``given`` and ``sampled``, in order."""

    turns: tuple[Turn, ...]

    @property
    def length(self) -> int:
        """The number of given and sampled tokens."""
        return sum([len(t.given) + len(t.sampled.tokens) for t in self.turns])


@dataclass(frozen=True, slots=True)
class Episode:
    """One answer to a prompt.

    Attributes:
      index: 0 .. n-1 within the group.
      trajectories: in the order in which they were begun; by default one trajectory of one turn.
        (): the environment ended it before the policy sampled anything.
      text: text that rewards read: the decoded completion without stop tokens, or the text that the
        environment made of the episode.
      ended: "done" by the environment, or "cut" at a limit on turns, tokens or time. ``ending`` of
        its score says more.
      texts: for an episode of several turns, the given and the sampled text of each turn, without
        the prompt. Empty if ``text`` is complete.
      order: for each turn, in the order of ``sampled``, its place in time, from 0: an environment
        may go from one trajectory to another and back. (): they were answered in that order.
      demonstration: True if no policy sampled it: it is a right answer of the prompt source, in
        place of a sample. Its log-probs mean nothing, and its versions are the oldest of its group.
    """

    index: int
    trajectories: tuple[Trajectory, ...]
    text: str = ""
    ended: Ending = Ending.DONE
    texts: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    demonstration: bool = False

    @property
    def sampled(self) -> Iterator[Sampled]:
        """The sampled part of each turn, trajectory by trajectory; see ``order``."""
        return iter([turn.sampled for one in self.trajectories for turn in one.turns])

    @property
    def tokens(self) -> int:
        """The number of sampled tokens in all turns."""
        return sum([len(t.sampled.tokens) for one in self.trajectories for t in one.turns])

    @property
    def truncated(self) -> bool:
        """True if it was cut at a limit."""
        return self.ending != Ending.DONE

    @property
    def ending(self) -> Ending:
        """How it ended before it was scored: done, cut, or at the length of its last answer."""
        samples = list(self.sampled)
        if self.ended == Ending.CUT or not samples:
            return self.ended
        last = samples[int(np.argmax(self.order))] if self.order else samples[-1]
        return Ending.LENGTH if last.finish == "length" else Ending.DONE

    @property
    def tokens_in_time(self) -> np.ndarray:
        """Indices of the sampled tokens in the order in which they were answered, int.

        Tokens are counted from 0 in the order of ``sampled``.
        """
        if not self.order:
            return np.arange(self.tokens)
        lengths = [len(s.tokens) for s in self.sampled]
        of_turns = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
        return np.concatenate([of_turns[turn] for turn in np.argsort(self.order)])

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of all workers that have generated a part of it, in order."""
        return tuple(dict.fromkeys(name for s in self.sampled for name in s.workers))


@dataclass(frozen=True, slots=True)
class Score:
    """The score that rewards gave an episode.

    Attributes:
      total: the complete reward of the episode, ``token_rewards`` included; finite.
      parts: value of each of ``rlax.rewards``, in their order. They are not weighted: without an
        environment that gives rewards, ``total`` is their sum, each times its ``weight``.
      metrics: further figures of rewards, by name; they do not train.
      token_rewards: float64 [sampled tokens] for each turn, in the order of ``Episode.sampled``;
        the part of ``total`` that was given at a token; () if there is none.
      ending: what the answer has brought down, such as ``over_memory``, if that is why it has this
        value; None: nothing, so that the episode's own ending counts.
    """

    total: float
    parts: tuple[float, ...] = ()
    metrics: Mapping[str, float] = EMPTY
    token_rewards: tuple[np.ndarray, ...] = ()
    ending: Ending | None = None

    @property
    def at_the_end(self) -> float:
        """The part of ``total`` that was given for the episode as a whole."""
        return self.total - sum(float(rewards.sum()) for rewards in self.token_rewards)


@dataclass(frozen=True, slots=True)
class Unscored:
    """An episode whose scoring failed. It never counts as reward 0, and never trains."""

    reason: str
    ending: Ending = Ending.REWARD_FAILED

    @property
    def shown(self) -> str:
        """The reason behind its ending, for messages."""
        return f"{self.ending}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """All episodes of one prompt and their scores, the unit of curation and staleness.

    Attributes:
      id: see ``Key.group``.
      attempt: the attempt that succeeded.
      prompt: the question.
      episodes: n, in index order.
      scores: one per episode.
      pass_rate_before: the prompt's measured pass rate before this group, None if never measured.
      temperature: of its samples, if ``rlax.rollouts.temperature`` is a schedule; None: it is a
        number, which is theirs.
    """

    id: int
    attempt: int
    prompt: Prompt
    episodes: tuple[Episode, ...]
    scores: tuple[Score | Unscored, ...]
    pass_rate_before: float | None = None
    temperature: float | None = None

    @property
    def rewards(self) -> np.ndarray:
        """float64 [n]; NaN where scoring failed."""
        totals = [s.total if isinstance(s, Score) else np.nan for s in self.scores]
        return np.array(totals, dtype=np.float64)

    @property
    def of_policy(self) -> ScoredGroup:
        """The group without demonstrations, of which the policy's own figures are."""
        if not any([episode.demonstration for episode in self.episodes]):
            return self
        pairs = zip(self.episodes, self.scores, strict=True)
        own = [(episode, score) for episode, score in pairs if not episode.demonstration]
        episodes, scores = zip(*own, strict=True) if own else ((), ())
        return replace(self, episodes=episodes, scores=scores)

    @property
    def endings(self) -> Iterator[Ending]:
        """The ending of each sample: that of its score, or else that of its episode."""
        pairs = zip(self.episodes, self.scores, strict=True)
        return iter([score.ending or episode.ending for episode, score in pairs])

    @property
    def sampled(self) -> Iterator[Sampled]:
        """The sampled parts of all turns of all episodes."""
        return iter([sampled for episode in self.episodes for sampled in episode.sampled])

    @property
    def oldest_version(self) -> int:
        """The oldest weight version among all tokens of the group."""
        return min(int(s.versions.min()) for s in self.sampled)

    @property
    def newest_version(self) -> int:
        """The newest weight version among all tokens of the group."""
        return max(int(s.versions.max()) for s in self.sampled)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A group that will not train; ``reason`` is one short phrase that is counted."""

    group: ScoredGroup
    reason: str


Judged = ScoredGroup | Rejected
"""A scored group that was accepted or rejected."""


def group_of(judged: Judged) -> ScoredGroup:
    """Returns the group, whether it was accepted or rejected."""
    return judged.group if isinstance(judged, Rejected) else judged


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The batch that one RL step trains on.

    Attributes:
      step: its training step, counts from 1; its update produces version ``step``.
      groups: in row order.
      advantages: for each group float64 [episodes], or [episodes, sampled tokens of the longest]
        if they differ within an episode, in the order of ``Episode.sampled``; computed over the
        whole batch.
      repeats: for each group int [episodes], the number of times that each episode trains, perhaps
        0; see ``rlax.curation.selection``. (): every episode trains once.
    """

    step: int
    groups: tuple[ScoredGroup, ...]
    advantages: tuple[np.ndarray, ...]
    repeats: tuple[np.ndarray, ...] = ()

    @property
    def selected(self) -> TrainBatch:
        """The batch that is laid out: each group has an episode as often as it trains."""
        if not self.repeats:
            return self
        groups, advantages = [], []
        for group, own, repeats in zip(self.groups, self.advantages, self.repeats, strict=True):
            places = np.repeat(np.arange(len(repeats)), repeats).tolist()
            episodes = tuple(group.episodes[place] for place in places)
            scores = tuple(group.scores[place] for place in places)
            groups.append(replace(group, episodes=episodes, scores=scores))
            advantages.append(own[places])
        return TrainBatch(self.step, tuple(groups), tuple(advantages))
