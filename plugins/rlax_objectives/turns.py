"""Credit by turn, for episodes of several turns, in the order in which they were answered.

A turn is one answer of the policy. Its reward is that of its tokens, and the reward of the sample
as a whole belongs to the last turn. Suffixes: ``_n`` samples, ``_nt`` [samples, tokens], ``_nk``
[samples, turns].
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rlax_plugin.api import Outcomes, Section

Fraction = Annotated[float, Field(ge=0, le=1)]


def turns_of(outcomes: Outcomes) -> np.ndarray:
    """Returns the turn of each token, int [n, t], from 0; -1 after a sample's end."""
    if outcomes.turns_nt is None:
        return np.where(outcomes.mask_nt, 0, -1)
    return np.where(outcomes.mask_nt, outcomes.turns_nt.astype(int) - 1, -1)


def rewards_of(outcomes: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the reward of each turn, float64 [n, k], and the mask of those that there are."""
    turns_nt = turns_of(outcomes)
    samples, turns = len(turns_nt), int(turns_nt.max(initial=-1)) + 1
    last_n = turns_nt[np.arange(samples), outcomes.lengths_n - 1]
    rewards_nk = np.zeros((samples, turns))
    if outcomes.token_rewards_nt is not None:
        rows, tokens = np.nonzero(outcomes.mask_nt)
        paid = outcomes.token_rewards_nt[rows, tokens]
        np.add.at(rewards_nk, (rows, turns_nt[rows, tokens]), paid)
    rewards_nk[np.arange(samples), last_n] += outcomes.rewards_n
    return rewards_nk, np.arange(turns) <= last_n[:, None]


def advantages_of(
    outcomes: Outcomes,
    values_nk: np.ndarray,
    gamma: float,
    lam: float,
    final_n: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Returns generalised advantages of turns, float64 [n, k].

    Args:
      final_n: the value after the last turn of each sample.
    """
    rewards_nk, there_nk = rewards_of(outcomes)
    values_nk = np.pad(np.where(there_nk, values_nk, 0.0), ((0, 0), (0, 1)))
    values_nk[np.arange(len(values_nk)), there_nk.sum(axis=1)] = final_n
    found_nk, running_n = np.zeros(rewards_nk.shape), np.zeros(len(rewards_nk))
    for k in reversed(range(rewards_nk.shape[1])):
        delta_n = rewards_nk[:, k] + gamma * values_nk[:, k + 1] - values_nk[:, k]
        running_n = np.where(there_nk[:, k], delta_n + gamma * lam * running_n, 0.0)
        found_nk[:, k] = running_n
    return found_nk


def of_tokens(x_nk: np.ndarray, outcomes: Outcomes) -> np.ndarray:
    """Returns at each token the number of its turn, [n, t], 0 after a sample's end."""
    turns_nt = turns_of(outcomes)
    found_nt = np.take_along_axis(x_nk, np.maximum(turns_nt, 0), axis=1)
    return np.where(turns_nt < 0, 0.0, found_nt)


def first_values(outcomes: Outcomes, values_nt: np.ndarray) -> np.ndarray:
    """Returns a critic's value of the state before each turn, [n, k]."""
    turns_nt = turns_of(outcomes)
    turns = int(turns_nt.max(initial=-1)) + 1
    first_nk = np.stack([(turns_nt == k).argmax(axis=1) for k in range(turns)], axis=1)
    return np.take_along_axis(values_nt, first_nk, axis=1)


class TurnNormalised(Section):
    """A = (G_k - mean) / (std + epsilon) of the return G_k = sum_j>=k gamma^(j-k) R_j of a turn.

    R_j is the reward of turn j, to the last of which that of the sample is added. All tokens of a
    turn have its advantage. Mean and std are over the turns of the group: GRPO with credit by turn,
    https://arxiv.org/abs/2505.11821. Equal returns give exactly 0.
    """

    gamma: Fraction = Field(1.0, description="discount factor per turn")
    among: Literal["same_turn", "all_turns"] = Field(
        "same_turn",
        description="turns of the group that are compared: same_turn: those with the same number; "
        "all_turns: all",
    )
    scale_by_std: bool = Field(True, description="false: A = G_k - mean")
    ddof: Literal[0, 1] = Field(1, description="the divisor of the variance is the number - ddof")
    epsilon: Annotated[float, Field(ge=0)] = Field(1e-6, description="added to the std")

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        rewards_nk, there_nk = rewards_of(outcomes)
        returns_nk = advantages_of(outcomes, np.zeros(rewards_nk.shape), self.gamma, 1.0)
        found_nk = np.zeros(returns_nk.shape)
        columns = range(returns_nk.shape[1]) if self.among == "same_turn" else [slice(None)]
        for members_g in outcomes.members:
            there_gk, returns_gk = there_nk[members_g], returns_nk[members_g]
            found_gk = np.zeros(returns_gk.shape)
            for column in columns:
                compared_gk = np.zeros_like(there_gk)
                compared_gk[:, column] = there_gk[:, column]
                found_gk[compared_gk] = self._normalised(returns_gk[compared_gk])
            found_nk[members_g] = found_gk
        return of_tokens(found_nk, outcomes)

    def _normalised(self, returns: np.ndarray) -> np.ndarray:
        if not returns.size or returns.max() == returns.min():
            return np.zeros(returns.size)
        centred = returns - returns.mean()
        return (
            centred / (returns.std(ddof=self.ddof) + self.epsilon) if self.scale_by_std else centred
        )
