"""Advantages in numpy and float64; see ``rlax_plugin.objective.advantages`` for their use.

Statistics are over scored samples. Equal rewards give exactly 0, in a group or, where the whole
batch is normalised, in the batch: in floating point their mean may differ from them, and the
quotient by a tiny std would be of order 1.

Suffixes: ``_g`` samples of a group, ``_n`` of a batch, ``_nt`` [samples, tokens].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rlax_plugin.api import ConfigError, Outcomes, Section, per_group

Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class GroupNormalised(Section):
    """A = (R - mean) / (std + epsilon) over the group: GRPO, https://arxiv.org/abs/2402.03300.

    With ``scale_by_std: false`` it is R - mean, as in Dr. GRPO, https://arxiv.org/abs/2503.20783.
    Published implementations differ in ddof (mostly 1) and epsilon (1e-9 to 1e-4, mostly 1e-6).
    """

    ddof: Literal[0, 1] = Field(
        1, description="in the variance of a group of G samples, the divisor is G - ddof"
    )
    epsilon: NonNegative = Field(1e-6, description="added to the std, so that it is never 0")
    scale_by_std: bool = Field(
        True, description="true: divide by the group's std; false: A = R - mean"
    )

    def __call__(self, rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        centred_g = rewards_g - rewards_g.mean()
        if not self.scale_by_std:
            return centred_g
        return centred_g / (rewards_g.std(ddof=self.ddof) + self.epsilon)


def leave_one_out(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    """A_i = R_i - mean of the other samples of the group: RLOO, https://arxiv.org/abs/2402.14740.

    Advantages are not divided by a std.
    """
    size = rewards_g.size
    return (rewards_g - rewards_g.mean()) * (size / (size - 1))


def length_weighted(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    """A = R - sum(len R) / sum(len) over the group: OPO, https://arxiv.org/abs/2505.23585.

    This baseline has the least variance if the squared gradient of a sequence is proportional to
    its length.
    """
    return rewards_g - (lengths_g * rewards_g).sum() / lengths_g.sum()


class Whitening(Section):
    """Options of A = (x - mean) / std over the tokens or samples of a batch."""

    whiten_over: Literal["tokens", "samples", "none"] = Field(
        "tokens",
        description="samples of mean and std: all tokens, or all samples with equal "
        "weight; none: no whitening",
    )
    ddof: Literal[0, 1] = Field(
        1,
        description="in the variance, the divisor is the number of tokens or samples minus ddof",
    )
    epsilon: NonNegative = Field(1e-8, description="keeps the std above 0; epsilon_rule says how")
    epsilon_rule: Literal["add", "floor"] = Field(
        "add", description="add: std = sqrt(var + epsilon); floor: std = sqrt(max(var, epsilon))"
    )

    def whitened(self, x_nt: np.ndarray, outcomes: Outcomes) -> np.ndarray:
        """Returns whitened values [n, t]; positions after a sample's end do not count."""
        mask_nt = outcomes.mask_nt
        if self.whiten_over == "none":
            return x_nt
        if x_nt[mask_nt].max() == x_nt[mask_nt].min():
            return np.zeros_like(x_nt)
        weight_nt = mask_nt.astype(np.float64)
        if self.whiten_over == "samples":
            weight_nt /= outcomes.lengths_n[:, None]
        # Of samples the sum of weights is their number, though not in floating point.
        count = mask_nt.sum() if self.whiten_over == "tokens" else len(mask_nt)
        centred_nt = x_nt - (weight_nt * x_nt).sum() / count
        variance = (weight_nt * centred_nt**2).sum() / max(count - self.ddof, 1)
        if self.epsilon_rule == "add":
            return centred_nt / np.sqrt(variance + self.epsilon)
        return centred_nt / np.sqrt(max(variance, self.epsilon))


class BatchNormalised(Whitening):
    """A = (x - mean) / std over the batch: REINFORCE++, https://arxiv.org/abs/2501.03262.

    x is R, the reward of the sample as a whole. With ``baseline: group_mean``, the group's mean of
    all rewards, those of tokens included and the KL excluded, is subtracted from it. The rewards of
    this token and of all later tokens of the sample are added to x, and with KL in the reward their
    KL rewards too.
    """

    baseline: Literal["none", "group_mean"] = Field(
        "none",
        description="value subtracted from the reward before whitening: none, or the group's mean "
        "of all rewards, including those of turns and tokens",
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        rewards_n = outcomes.rewards_n
        if self.baseline == "group_mean":
            paid = Outcomes(outcomes.paid_n, outcomes.lengths_n, outcomes.group_n)
            centred_n = per_group(lambda paid_g, lengths_g: paid_g - paid_g.mean())(paid)
            # What is paid at tokens is in the returns already.
            rewards_n = centred_n - (outcomes.paid_n - rewards_n)
        return self.whitened(replace(outcomes, rewards_n=rewards_n).returns_nt, outcomes)


class Gae(Whitening):
    """A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = R_t + gamma V_{t+1} - V_t, then whitened.

    GAE, https://arxiv.org/abs/1506.02438. R_t is the reward of token t, and V_t the value of the
    state before it, which a critic estimates. Tokens are the sampled ones of a sample in the order
    in which they were answered, over all its turns and trajectories. The reward of the sample is
    added to its last token. The value after that token is 0; for a truncated sample, unless
    ``truncated`` is end, it is the critic's. A critic is a signal, which rlax.signals lists, such
    as critic or value_head. It learns the returns A_t + V_t, before whitening, with critic_lam as
    lambda. Without a critic, the advantage of a token before whitening is the reward of the sample
    plus all rewards of this and all later tokens, those of turns and of KL included, and gamma and
    lam must be 1. ``evaluate_objective`` takes values as an argument.
    """

    gamma: Fraction = Field(1.0, description="discount factor per token")
    lam: Fraction = Field(
        1.0,
        description="lambda of GAE: with 1, A is returns minus values; with 0, one-step "
        "differences",
    )
    critic_lam: Fraction | None = Field(
        None,
        description="lambda of the returns that the critic learns; with 1, they are the rewards "
        "to come; null: lam",
    )
    truncated: Literal["bootstrap", "end"] = Field(
        "bootstrap",
        description="value after the last token of a truncated sample: bootstrap: the critic's, "
        "as if the sample went on; end: 0, as after any other sample, so that its reward is all "
        "that it gets",
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        if outcomes.values_nt is None:
            for name, value in (("gamma", self.gamma), ("lam", self.lam)):
                if value != 1:
                    key = f"rlax.objective.advantage.{name}"
                    raise ConfigError(key, value, "must be 1 without the values of a critic")
            advantages_nt = outcomes.returns_nt
        else:
            advantages_nt = self._estimated(outcomes, outcomes.values_nt, self.lam)
        return self.whitened(advantages_nt, outcomes)

    def returns(self, outcomes: Outcomes) -> np.ndarray:
        """Returns what the critic learns, float64 [n, t]: its values plus their advantages."""
        if outcomes.values_nt is None:
            return outcomes.returns_nt
        lam = self.lam if self.critic_lam is None else self.critic_lam
        values_nt = np.where(outcomes.mask_nt, outcomes.values_nt, 0.0)
        return values_nt + self._estimated(outcomes, values_nt, lam)

    def _estimated(self, outcomes: Outcomes, values_nt: np.ndarray, lam: float) -> np.ndarray:
        mask_nt = outcomes.mask_nt
        samples, longest = mask_nt.shape
        every_n = np.arange(samples)
        rewards_nt = np.zeros(mask_nt.shape)
        if outcomes.token_rewards_nt is not None:
            rewards_nt += outcomes.token_rewards_nt
        rewards_nt[every_n, outcomes.lengths_n - 1] += outcomes.rewards_n
        values_nt = np.pad(np.where(mask_nt, values_nt, 0.0), ((0, 0), (0, 1)))
        if self.truncated == "bootstrap" and outcomes.final_values_n is not None:
            values_nt[every_n, outcomes.lengths_n] = outcomes.final_values_n
        advantages_nt, running_n = np.zeros(mask_nt.shape), np.zeros(samples)
        for t in reversed(range(longest)):
            delta_n = rewards_nt[:, t] + self.gamma * values_nt[:, t + 1] - values_nt[:, t]
            running_n = np.where(mask_nt[:, t], delta_n + self.gamma * lam * running_n, 0.0)
            advantages_nt[:, t] = running_n
        return advantages_nt
