"""Computes advantages from rewards: numpy, float64, over all samples of one batch.

An advantage slot maps ``Outcomes`` to one advantage per sample or per token. Most look at one
group at a time and are written as a function of its rewards and lengths: ``per_group`` makes a slot
of it.

Suffixes name axes: ``_n`` is one per sample, ``_nt`` [samples, longest completion], ``_g`` the
samples of one group, ``_bt`` [rows, length] of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Episode, Score, ScoredGroup
from rlax_plugin.config import Overlong

REWARD_PARTS = "rl_reward_parts"
"""float32, the value of each of ``rlax.rewards``, not weighted, on the last axis."""
PAID_AT_TOKENS = "rl_paid_at_tokens"
"""float64: ``Outcomes.paid_at_tokens_n`` of a token's episode, in a batch with token rewards."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The inputs of advantages: every scored sample of a batch, float64.

    Attributes:
      rewards_n: rewards of whole samples, after the length penalty.
      lengths_n: int, completion tokens. The tokens of a sample are in the order in which they were
        answered, whichever trajectories they belong to.
      group_n: int, samples of one group share a number.
      token_rewards_nt: further rewards per token, 0 after a sample's end; None if there are none.
      paid_at_tokens_n: sum of the token rewards that rewards and the environment gave, without KL
        rewards; None if there are none.
      values_nt: a critic's value of the state before each token; None without a critic.
      final_values_n: a critic's value of the state in which a truncated sample was cut, 0 for all
        others; None if there are none.
      turns_nt: the turn of each token, from 1, in the order in which turns were answered; None:
        every sample is one turn.
      parts_np: the value of each of ``rlax.rewards``, not weighted; None if they are not known.
      step: the RL step, from 1.
    """

    rewards_n: np.ndarray
    lengths_n: np.ndarray
    group_n: np.ndarray
    token_rewards_nt: np.ndarray | None = None
    values_nt: np.ndarray | None = None
    paid_at_tokens_n: np.ndarray | None = None
    final_values_n: np.ndarray | None = None
    turns_nt: np.ndarray | None = None
    parts_np: np.ndarray | None = None
    step: int = 1

    @property
    def mask_nt(self) -> np.ndarray:
        """The mask of each sample's tokens, bool."""
        return np.arange(self.lengths_n.max(initial=0)) < self.lengths_n[:, None]

    @property
    def members(self) -> list[np.ndarray]:
        """Indices of the samples of each group, ascending; groups in the order of their numbers."""
        order = np.argsort(self.group_n, kind="stable")
        ends = np.flatnonzero(np.diff(self.group_n[order])) + 1
        bounds = [0, *ends.tolist(), len(order)]
        return [order[a:b] for a, b in itertools.pairwise(bounds) if a < b]

    @property
    def totals_n(self) -> np.ndarray:
        """The complete reward of each sample."""
        if self.token_rewards_nt is None:
            return self.rewards_n
        return self.rewards_n + self.token_rewards_nt.sum(axis=1)

    @property
    def paid_n(self) -> np.ndarray:
        """The complete reward of each sample from rewards and environment, without KL rewards."""
        if self.paid_at_tokens_n is None:
            return self.rewards_n
        return self.rewards_n + self.paid_at_tokens_n

    @property
    def returns_nt(self) -> np.ndarray:
        """The sample's reward plus the token rewards from each token on (return-to-go)."""
        to_go_nt = np.zeros(self.mask_nt.shape)
        if self.token_rewards_nt is not None:
            to_go_nt = np.cumsum(self.token_rewards_nt[:, ::-1], axis=1)[:, ::-1]
        return self.rewards_n[:, None] + to_go_nt


AdvantageSlot = Callable[[Outcomes], np.ndarray]  # -> float64 [n] or [n, t]
GroupAdvantage = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rewards_g, lengths_g) -> [g]


@runtime_checkable
class ReturnsEstimate(Protocol):
    """An advantage slot that says what a critic is to predict."""

    def returns(self, outcomes: Outcomes) -> np.ndarray:
        """Returns the target of each token's value, float64 [n, t]; ``outcomes`` has values."""
        ...


def returns_of(slot: AdvantageSlot, outcomes: Outcomes) -> np.ndarray:
    """Returns what a critic learns, [n, t]: the slot's own estimate, or the return-to-go."""
    if isinstance(slot, ReturnsEstimate):
        return slot.returns(outcomes)
    return outcomes.returns_nt


@dataclass(frozen=True, slots=True)
class LengthPenalised:
    """An advantage slot that sees rewards after the length penalty.

    Attributes:
      slot: the slot.
      overlong: the penalty.
      max_tokens: largest number of sampled tokens of an episode.
    """

    slot: AdvantageSlot
    overlong: Overlong
    max_tokens: int

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        return self.slot(self._penalised(outcomes))

    def returns(self, outcomes: Outcomes) -> np.ndarray:
        """See ``ReturnsEstimate``."""
        return returns_of(self.slot, self._penalised(outcomes))

    def _penalised(self, outcomes: Outcomes) -> Outcomes:
        rewards_n, lengths_n = outcomes.rewards_n, outcomes.lengths_n
        return replace(
            outcomes, rewards_n=shaped(rewards_n, lengths_n, self.overlong, self.max_tokens)
        )


def per_group(function: GroupAdvantage) -> AdvantageSlot:
    """Returns an advantage slot that looks at one group at a time.

    Args:
      function: (rewards_g, lengths_g) -> float64 [g]. It sees scored samples only, with their token
        rewards added up. A group in which all rewards are equal gets advantages of 0 without a
        call: in floating point the mean of equal numbers may differ from them, and a quotient by a
        tiny std would be of order 1.
    """

    def advantages(outcomes: Outcomes) -> np.ndarray:
        totals_n = outcomes.totals_n
        advantages_n = np.zeros_like(totals_n)
        for members_g in outcomes.members:
            rewards_g = totals_n[members_g]
            if rewards_g.max() > rewards_g.min():
                advantages_n[members_g] = function(rewards_g, outcomes.lengths_n[members_g])
        return advantages_n

    advantages.__doc__ = function.__doc__  # what ``rlax explain`` shows
    return advantages


def shaped(
    rewards_n: np.ndarray, lengths_n: np.ndarray, overlong: Overlong, max_new_tokens: int
) -> np.ndarray:
    """Returns rewards minus the length penalty of ``config.Overlong``."""
    if not overlong.penalty:
        return rewards_n
    most = overlong.max_tokens or max_new_tokens
    buffer = overlong.buffer_tokens or max(1, most // 5)
    return rewards_n - overlong.penalty * np.clip((lengths_n - (most - buffer)) / buffer, 0.0, 1.0)


def of_groups(
    slot: AdvantageSlot, groups: Sequence[ScoredGroup], step: int = 1
) -> tuple[np.ndarray, ...]:
    """Returns advantages of the episodes of one batch; those without a reward get 0.

    Args:
      slot: the advantage slot.
      groups: the groups of the batch.
      step: the RL step of the batch.

    Returns:
      See ``TrainBatch.advantages``.

    Raises:
      TrainingError: the slot returned another shape, or a value that is not finite; or advantages
        that differ within a sample, which only token rewards, turns and values may cause.
    """
    scores = [score for group in groups for score in group.scores]
    paid = [s.at_the_end if isinstance(s, Score) else np.nan for s in scores]
    rewards_n = np.array(paid, np.float64)
    lengths_n = np.array([episode.tokens for group in groups for episode in group.episodes])
    group_n = np.repeat(np.arange(len(groups)), [len(group.episodes) for group in groups])
    scored_n = ~np.isnan(rewards_n)  # the others say nothing and influence no other
    episodes = [episode for group in groups for episode in group.episodes]
    pairs = [(e, s) for e, s in zip(episodes, scores, strict=True) if isinstance(s, Score)]
    token_rewards_nt = _token_rewards(pairs, lengths_n[scored_n])
    turns_nt = _turns([episode for episode, _ in pairs], lengths_n[scored_n])
    outcomes = Outcomes(
        rewards_n[scored_n],
        lengths_n[scored_n],
        group_n[scored_n],
        token_rewards_nt,
        paid_at_tokens_n=None if token_rewards_nt is None else token_rewards_nt.sum(axis=1),
        turns_nt=turns_nt,
        parts_np=_parts([score for _, score in pairs]),
        step=step,
    )
    found_nt = _computed(slot, outcomes)
    ends = np.cumsum([len(group.episodes) for group in groups])
    differs_nt = found_nt != found_nt[:, :1]
    if differs_nt.any() and (differs_nt & outcomes.mask_nt).any():
        turns = 1 if turns_nt is None else turns_nt.max()
        if outcomes.token_rewards_nt is not None or turns > 1:
            in_time_nt = np.where(outcomes.mask_nt, found_nt, 0.0)
            advantages_nt = np.zeros((len(rewards_n), found_nt.shape[1]))
            for index, (episode, _), in_time_t in zip(
                np.flatnonzero(scored_n), pairs, in_time_nt, strict=True
            ):
                advantages_nt[index, episode.tokens_in_time] = in_time_t[: episode.tokens]
            return tuple(np.split(advantages_nt, ends[:-1]))
        raise TrainingError(
            "the advantage slot gives the tokens of a sample different advantages, but there are "
            "no token rewards, further turns or values"
        )
    advantages_n = np.zeros(len(rewards_n))
    advantages_n[scored_n] = found_nt[:, 0]
    return tuple(np.split(advantages_n, ends[:-1]))


def _turns(episodes: Sequence[Episode], lengths_n: np.ndarray) -> np.ndarray | None:
    """Returns ``Outcomes.turns_nt``, 0 after a sample's end; None if every sample is one turn."""
    if all(_is_one_turn(episode) for episode in episodes):
        return None
    turns_nt = np.zeros((len(episodes), int(lengths_n.max(initial=0))), int)
    for turns_t, episode in zip(turns_nt, episodes, strict=True):
        tokens = [len(sampled.tokens) for sampled in episode.sampled]
        places = np.array(episode.order or range(len(tokens)))
        turns_t[: sum(tokens)] = 1 + np.sort(np.repeat(places, tokens))
    return turns_nt


def _is_one_turn(episode: Episode) -> bool:
    return len(episode.trajectories) == 1 and len(episode.trajectories[0].turns) == 1


def _parts(scores: Sequence[Score]) -> np.ndarray | None:
    """Returns ``Outcomes.parts_np``; None if some score lacks a part."""
    parts = {len(score.parts) for score in scores}
    return np.array([score.parts for score in scores], np.float64) if len(parts) == 1 else None


def _token_rewards(
    scored: Sequence[tuple[Episode, Score]], lengths_n: np.ndarray
) -> np.ndarray | None:
    """Returns float64 [n, longest], in the order of time; None if there are no token rewards."""
    if not any(score.token_rewards for _, score in scored):
        return None
    paid_nt = np.zeros((len(scored), int(lengths_n.max(initial=0))))
    for paid_t, (episode, score) in zip(paid_nt, scored, strict=True):
        if score.token_rewards:
            rewards = np.concatenate(score.token_rewards)[episode.tokens_in_time]
            paid_t[: len(rewards)] = rewards
    return paid_nt


def probe(slot: AdvantageSlot, group_size: int) -> None:
    """Calls a slot once, so that its errors are found before a run starts.

    Raises:
      ConfigError, TrainingError: see ``of_groups``.
    """
    samples = 2 * group_size
    rewards_n = np.arange(samples) % 2 * 1.0
    _computed(slot, Outcomes(rewards_n, 1 + np.arange(samples), np.arange(samples) // group_size))


def compares_groups(slot: AdvantageSlot) -> bool:
    """True if rewards that differ only between groups give equal advantages, unlike within groups.

    Raises:
      ConfigError, TrainingError: see ``of_groups``.
    """
    rewards_n, lengths_n = np.array([1.0, 0.0]), np.ones(2, int)
    alone, together = (
        _computed(slot, Outcomes(rewards_n, lengths_n, np.array(group_n)))
        for group_n in ((0, 1), (0, 0))
    )
    return bool(np.ptp(together) > 0 and np.ptp(alone) == 0)


def reads_values(slot: AdvantageSlot, group_size: int) -> bool:
    """True if a critic's values change the advantages of two groups of this size.

    Raises:
      ConfigError, TrainingError: see ``of_groups``.
    """
    samples = 2 * group_size
    rewards_n, lengths_n = np.resize([1.0, 0.0, 0.5], samples), np.resize([2, 2, 1], samples)
    outcomes = Outcomes(rewards_n, lengths_n, np.repeat([0, 1], group_size))
    first_nt = np.linspace(0.0, 1.0, 2 * samples).reshape(samples, 2)
    first, second = (
        _computed(slot, replace(outcomes, values_nt=values_nt))
        for values_nt in (first_nt, first_nt**2)
    )
    return not np.array_equal(first, second)


def of_batch(
    slot: AdvantageSlot,
    arrays: Mapping[str, np.ndarray],
    token_rewards_bt: np.ndarray | None = None,
    values_bt: np.ndarray | None = None,
    final_values_bt: np.ndarray | None = None,
) -> np.ndarray:
    """Returns advantages of a laid-out batch, float64 [rows, length], 0 outside of completions.

    Args:
      slot: the advantage slot.
      arrays: of ``training/objective/batches.py``: ``rl_rewards``, ``rl_group``, ``rl_episode`` and
        ``rl_place`` are read, ``rl_truncated`` with final values, and ``rl_paid_at_tokens``,
        ``rl_turn``, ``rl_step`` and ``rl_reward_parts`` if present.
      token_rewards_bt, values_bt: see ``Outcomes``; read at the tokens of completions.
      final_values_bt: see ``Outcomes``; read at the last token of truncated episodes.

    Raises:
      TrainingError: see ``of_groups``.
    """
    places = list(completions(arrays))
    longest = max((len(t) for _, t in places), default=0)

    def spread(source_bt: np.ndarray | None) -> np.ndarray | None:
        if source_bt is None:
            return None
        result_nt = np.zeros((len(places), longest))
        for index, (rows, t) in enumerate(places):
            result_nt[index, : len(t)] = source_bt[rows, t]
        return result_nt

    final_values_n = None
    if final_values_bt is not None:
        last = [(b[-1], t[-1]) for b, t in places]
        cut_n = np.array([arrays["rl_truncated"][at] for at in last], bool)
        final_values_n = np.where(cut_n, [final_values_bt[at] for at in last], 0.0)

    def of_samples(source: np.ndarray | None, dtype: type = float) -> Any:
        return None if source is None else np.array([source[b[0], t[0]] for b, t in places], dtype)

    outcomes = Outcomes(
        rewards_n=of_samples(arrays["rl_rewards"]),
        lengths_n=np.array([len(t) for _, t in places], int),
        group_n=of_samples(arrays["rl_group"], int),
        token_rewards_nt=spread(token_rewards_bt),
        values_nt=spread(values_bt),
        paid_at_tokens_n=of_samples(arrays.get(PAID_AT_TOKENS)),
        turns_nt=spread(arrays.get("rl_turn")),
        parts_np=of_samples(arrays.get(REWARD_PARTS)),
        step=int(np.max(arrays.get("rl_step", 1), initial=1)),
        final_values_n=final_values_n,
    )
    advantages_bt = np.zeros(arrays["rl_rewards"].shape)
    for (rows, t), advantages_t in zip(places, _computed(slot, outcomes), strict=True):
        advantages_bt[rows, t] = advantages_t[: len(t)]
    return advantages_bt


def completions(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (rows, positions) of the sampled tokens of each episode of a batch that has a reward.

    They lie in one row, unless the episode has several trajectories. Tokens are in the order in
    which they were answered, wherever they lie.

    Args:
      arrays: of ``training/objective/batches.py``: ``rl_episode`` and ``rl_place`` are read.
    """
    rows, positions = np.nonzero(arrays["rl_episode"])
    episodes = arrays["rl_episode"][rows, positions]
    order = np.lexsort((arrays["rl_place"][rows, positions], episodes))
    ends = np.flatnonzero(np.diff(episodes[order])) + 1
    for found in np.split(order, ends) if len(order) else ():
        yield rows[found], positions[found]


def _computed(slot: AdvantageSlot, outcomes: Outcomes) -> np.ndarray:
    """Returns float64 [n, t], or [n, 1] for a slot that returned one number per sample."""
    shape = (outcomes.lengths_n.size, int(outcomes.lengths_n.max(initial=0)))
    if not shape[0]:
        return np.zeros((0, 1))
    found = np.asarray(slot(outcomes), np.float64)
    if found.shape not in (shape[:1], shape) or not np.isfinite(found).all():
        raise TrainingError(
            f"advantages of rewards {outcomes.rewards_n}: got {found}, expected finite numbers, "
            f"{list(shape[:1])} or {list(shape)}"
        )
    return found.reshape(shape[0], -1)
