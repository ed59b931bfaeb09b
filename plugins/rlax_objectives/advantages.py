"""Advantages in numpy and float64; see ``rlax_plugin.training.objective.advantages`` for their use.

Statistics are over scored samples. Equal rewards give exactly 0, in a group or, where the whole
batch is normalised, in the batch: in floating point their mean may differ from them, and the
quotient by a tiny std would be of order 1. Advantages that imitate are weights of a likelihood,
never below 0, and need no correction for samples of another policy.

Suffixes: ``_g`` samples of a group, ``_n`` of a batch, ``_nt`` [samples, tokens].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from rlax_objectives import turns
from rlax_plugin.api import ConfigError, Outcomes, Section, per_group

Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class GroupNormalised(Section):
    """A = (R - mean) / (std + epsilon) over the group: GRPO, https://arxiv.org/abs/2402.03300.

    With ``scale_by_std: false`` it is R - mean, as in Dr. GRPO, https://arxiv.org/abs/2503.20783.
    Published implementations differ in ddof (mostly 1) and epsilon (1e-9 to 1e-4, mostly 1e-6).
    ``std_of: batch`` divides by the std of the rewards of all samples of the batch instead, as TRL
    does with ``scale_rewards="batch"`` (https://arxiv.org/abs/2508.08221).
    """

    ddof: Literal[0, 1] = Field(
        1, description="in the variance of a group of G samples, the divisor is G - ddof"
    )
    epsilon: NonNegative = Field(1e-6, description="added to the std, so that it is never 0")
    scale_by_std: bool = Field(True, description="true: divide by the std; false: A = R - mean")
    std_of: Literal["group", "batch"] = Field(
        "group", description="rewards whose std is the divisor: the group's, or the whole batch's"
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        if self.std_of == "group" or not self.scale_by_std:
            return per_group(self.of_group)(outcomes)
        centred_n = per_group(lambda rewards_g, lengths_g: rewards_g - rewards_g.mean())(outcomes)
        return centred_n / (_std(outcomes.totals_n, self.ddof) + self.epsilon)

    def of_group(self, rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        """Returns the advantages of one group, by its own statistics."""
        centred_g = rewards_g - rewards_g.mean()
        if not self.scale_by_std:
            return centred_g
        return centred_g / (rewards_g.std(ddof=self.ddof) + self.epsilon)


def _std(x_n: np.ndarray, ddof: int) -> float:
    """Returns the std of several numbers; 1 of equal ones, whose centred values are 0."""
    return float(x_n.std(ddof=ddof)) if x_n.max() > x_n.min() else 1.0


class LeaveOneOut(Section):
    """A_i = R_i - mean of the other samples of the group: RLOO, https://arxiv.org/abs/2402.14740.

    By default advantages are not divided by a std. ``scale: std_of_others`` divides each by the std
    of the others plus epsilon, and leaves it as it is if the others are equal: NeMo-RL's GRPO.
    ``scale: batch`` normalises all advantages of the batch, (A - mean) / (std + epsilon): TRL's
    RLOO with ``normalize_advantages``. Both have ddof 1.
    """

    scale: Literal["none", "std_of_others", "batch"] = Field(
        "none",
        description="none; std_of_others: division by the std of the others; batch: "
        "normalisation over the batch",
    )
    epsilon: NonNegative = Field(1e-6, description="added to the std; TRL: 1e-4")

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        advantages_n = per_group(self.of_group)(outcomes)
        if self.scale != "batch" or not advantages_n.any():
            return advantages_n
        # Their mean is 0, though not in floating point.
        return advantages_n / (_std(advantages_n, 1) + self.epsilon)

    def of_group(self, rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        """Returns the advantages of one group, not normalised over the batch."""
        size = rewards_g.size
        centred_g = (rewards_g - rewards_g.mean()) * (size / (size - 1))
        if self.scale != "std_of_others":
            return centred_g
        for i in range(size):
            others_g = np.delete(rewards_g, i)
            if others_g.max() > others_g.min():
                centred_g[i] /= others_g.std(ddof=1) + self.epsilon
        return centred_g


def length_weighted(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    """A = R - sum(len R) / sum(len) over the group: OPO, https://arxiv.org/abs/2505.23585.

    This baseline has the least variance if the squared gradient of a sequence is proportional to
    its length.
    """
    return rewards_g - (lengths_g * rewards_g).sum() / lengths_g.sum()


class One(Section):
    """A = 1 whatever the reward: with grad_1 ``log_prob`` the log-likelihood, behaviour cloning."""

    imitates: ClassVar[bool] = True

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        return np.ones_like(outcomes.rewards_n)


class Exponential(Section):
    """A = min(exp((R - baseline) / beta), cap): AWR, https://arxiv.org/abs/1910.00177.

    With grad_1 ``log_prob`` it is a likelihood in which better samples count more. The paper's
    baseline is a learned value of the state, for which the mean of the group stands here.
    """

    imitates: ClassVar[bool] = True
    beta: Positive = Field(
        1.0, description="temperature: the smaller, the more the best samples count"
    )
    cap: Positive = Field(20.0, description="largest weight of a sample; the paper's code: 20")
    baseline: Literal["group_mean", "batch_mean"] = Field(
        "group_mean", description="subtracted from the reward: the mean of its group, or the batch"
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        if self.baseline == "batch_mean":
            outcomes = replace(outcomes, group_n=np.zeros_like(outcomes.group_n))
        centred_n = per_group(lambda rewards_g, lengths_g: rewards_g - rewards_g.mean())(outcomes)
        return np.exp(np.minimum(centred_n / self.beta, np.log(self.cap)))


class Whitening(Section):
    """Options of A = (x - mean) / std over the tokens or samples of a batch."""

    whiten_over: Literal["tokens", "samples", "none"] = Field(
        "tokens",
        description="samples of mean and std: all tokens, or all samples with equal "
        "weight; none: no whitening",
    )
    ddof: Literal[0, 1] = Field(
        1, description="in the variance, the divisor is the number of tokens or samples minus ddof"
    )
    epsilon: NonNegative = Field(1e-8, description="keeps the std above 0; epsilon_rule says how")
    epsilon_rule: Literal["add", "floor", "add_to_std"] = Field(
        "add",
        description="add: std = sqrt(var + epsilon); floor: std = sqrt(max(var, epsilon)); "
        "add_to_std: std = sqrt(var) + epsilon, as in AReaL",
    )
    average: Literal["none", "sample"] = Field(
        "none",
        description="sample: every token gets the mean of the whitened values of its sample, as "
        "in AReaL's GSPO; none: values stay those of tokens",
    )

    def _averaged(self, x_nt: np.ndarray, outcomes: Outcomes) -> np.ndarray:
        if self.average == "none":
            return x_nt
        sums_n = np.where(outcomes.mask_nt, x_nt, 0.0).sum(axis=1)
        return np.broadcast_to((sums_n / outcomes.lengths_n)[:, None], x_nt.shape)

    def whitened(self, x_nt: np.ndarray, outcomes: Outcomes) -> np.ndarray:
        """Returns whitened values [n, t]; positions after a sample's end do not count."""
        mask_nt = outcomes.mask_nt
        if self.whiten_over == "none":
            return self._averaged(x_nt, outcomes)
        if x_nt[mask_nt].max() == x_nt[mask_nt].min():
            return np.zeros_like(x_nt)
        weight_nt = mask_nt.astype(np.float64)
        if self.whiten_over == "samples":
            weight_nt /= outcomes.lengths_n[:, None]
        # Of samples the sum of weights is their number, though not in floating point.
        count = mask_nt.sum() if self.whiten_over == "tokens" else len(mask_nt)
        centred_nt = x_nt - (weight_nt * x_nt).sum() / count
        variance = (weight_nt * centred_nt**2).sum() / max(count - self.ddof, 1)
        if self.epsilon_rule == "add_to_std":
            return self._averaged(centred_nt / (np.sqrt(variance) + self.epsilon), outcomes)
        if self.epsilon_rule == "add":
            return self._averaged(centred_nt / np.sqrt(variance + self.epsilon), outcomes)
        return self._averaged(centred_nt / np.sqrt(max(variance, self.epsilon)), outcomes)


class BatchNormalised(Whitening):
    """A = (x - mean) / std over the batch: REINFORCE++, https://arxiv.org/abs/2501.03262.

    x is R, the reward of the sample as a whole. With ``baseline: group_mean``, the group's mean of
    all rewards, those of tokens included and the KL excluded, is subtracted from it. The rewards of
    this token and of all later tokens of the sample are added to x, and with KL in the reward their
    KL rewards too: the KL as return. ``credit: own`` adds only the rewards of the token itself, as
    NeMo-RL and slime do, and ``credit: sample`` the sum over the whole sample, which then also
    counts in the group's mean, as in verl's REINFORCE++ with a baseline.
    """

    baseline: Literal["none", "group_mean", "group_normalised"] = Field(
        "none",
        description="value subtracted from the reward before whitening: none, or the group's mean "
        "of all rewards, including those of turns and tokens; group_normalised: the difference is "
        "also divided by the group's std plus group_epsilon, as in AReaL",
    )
    group_epsilon: NonNegative = Field(
        1e-6, description="added to the group's std, which has ddof 1, with group_normalised"
    )
    credit: Literal["later", "own", "sample"] = Field(
        "later",
        description="rewards of tokens, KL included, that a token is credited with. later: its "
        "own and those of all later tokens; own: its own; sample: all of the sample, before the "
        "group's mean",
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        if self.credit == "own":
            return self._own(outcomes)
        if self.credit == "sample":
            totals_n = outcomes.totals_n
            outcomes = replace(
                outcomes, rewards_n=totals_n, token_rewards_nt=None, paid_at_tokens_n=None
            )
        rewards_n = outcomes.rewards_n
        if self.baseline != "none":
            centred_n = self._centred(outcomes, outcomes.paid_n)
            # What is paid at tokens is in the returns already.
            rewards_n = centred_n - (outcomes.paid_n - rewards_n)
        return self.whitened(replace(outcomes, rewards_n=rewards_n).returns_nt, outcomes)

    def _centred(self, outcomes: Outcomes, paid_n: np.ndarray) -> np.ndarray:
        """Returns the rewards relative to those of their groups."""
        options = {
            "epsilon": self.group_epsilon,
            "scale_by_std": self.baseline == "group_normalised",
        }
        of_groups = GroupNormalised.model_validate(options)
        return of_groups(Outcomes(paid_n, outcomes.lengths_n, outcomes.group_n))

    def _own(self, outcomes: Outcomes) -> np.ndarray:
        """Returns whitened x_t = R - baseline + the token's own reward."""
        rewards_n = outcomes.rewards_n
        if self.baseline != "none":
            rewards_n = self._centred(outcomes, rewards_n)
        x_nt = np.repeat(rewards_n[:, None], outcomes.mask_nt.shape[1], axis=1)
        if outcomes.token_rewards_nt is not None:
            x_nt = x_nt + outcomes.token_rewards_nt
        return self.whitened(x_nt, outcomes)


class Gae(Whitening):
    """A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = R_t + gamma V_{t+1} - V_t, then whitened.

    GAE, https://arxiv.org/abs/1506.02438. R_t is the reward of token t, and V_t the value of the
    state before it, which a critic estimates. Tokens are the sampled ones of a sample in the order
    in which they were answered, over all its turns and trajectories. The reward of the sample is
    added to its last token. The value after that token is 0; for a truncated sample, with
    ``truncated: bootstrap``, it is the critic's. A critic is a signal, which rlax.signals lists,
    such as critic or value_head. It learns the returns A_t + V_t, before whitening, with critic_lam
    as lambda. Without a critic, the advantage of a token before whitening is the reward of the
    sample plus all rewards of this and all later tokens, those of turns and of KL included, and
    gamma and lam must be 1. ``evaluate_objective`` takes values as an argument.

    With ``over: turns`` the steps are the turns of an episode, in the order in which they were
    answered: R is the reward of a turn, V the value before its first token, and all tokens of a
    turn have its advantage; a critic learns the return of the turn at all of them. It is the
    utterance-level credit of ArCHer, https://arxiv.org/abs/2402.19446. Then gamma may be below 1
    without a critic.
    """

    gamma: Fraction = Field(1.0, description="discount factor per token")
    lam: Fraction = Field(
        1.0,
        description="lambda of GAE: with 1, A is returns minus values; with 0, one-step "
        "differences",
    )
    over: Literal["tokens", "turns"] = Field(
        "tokens", description="steps to which gamma and lam apply: tokens, or turns of an episode"
    )
    critic_lam: Fraction | None = Field(
        None,
        description="lambda of the returns that the critic learns; with 1, they are the rewards "
        "to come; null: lam",
    )
    truncated: Literal["bootstrap", "end"] = Field(
        "end",
        description="value after the last token of a truncated sample: end: 0, as after any other "
        "sample; bootstrap: the critic's, as if the sample went on",
    )

    def __call__(self, outcomes: Outcomes) -> np.ndarray:
        if self.over == "turns":
            advantages_nk, _ = self._of_turns(outcomes, self.lam)
            return self.whitened(turns.of_tokens(advantages_nk, outcomes), outcomes)
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
        lam = self.lam if self.critic_lam is None else self.critic_lam
        if self.over == "turns":
            advantages_nk, values_nk = self._of_turns(outcomes, lam)
            return turns.of_tokens(advantages_nk + values_nk, outcomes)
        if outcomes.values_nt is None:
            return outcomes.returns_nt
        values_nt = np.where(outcomes.mask_nt, outcomes.values_nt, 0.0)
        return values_nt + self._estimated(outcomes, values_nt, lam)

    def _final_values(self, outcomes: Outcomes) -> np.ndarray:
        """Returns the value after the last token of each sample, float64 [n]."""
        if self.truncated == "end" or outcomes.final_values_n is None:
            return np.zeros(outcomes.lengths_n.size)
        return outcomes.final_values_n

    def _of_turns(self, outcomes: Outcomes, lam: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the advantages of turns, and the values of the states before them."""
        if (values_nt := outcomes.values_nt) is None:
            if self.lam != 1:
                key, reason = "rlax.objective.advantage.lam", "must be 1 without a critic's values"
                raise ConfigError(key, self.lam, reason)
            values_nt = np.zeros(outcomes.mask_nt.shape)
        values_nk = turns.first_values(outcomes, values_nt)
        final_n = self._final_values(outcomes)
        return turns.advantages_of(outcomes, values_nk, self.gamma, lam, final_n), values_nk

    def _estimated(self, outcomes: Outcomes, values_nt: np.ndarray, lam: float) -> np.ndarray:
        mask_nt = outcomes.mask_nt
        samples, longest = mask_nt.shape
        every_n = np.arange(samples)
        rewards_nt = np.zeros(mask_nt.shape)
        if outcomes.token_rewards_nt is not None:
            rewards_nt += outcomes.token_rewards_nt
        rewards_nt[every_n, outcomes.lengths_n - 1] += outcomes.rewards_n
        values_nt = np.pad(np.where(mask_nt, values_nt, 0.0), ((0, 0), (0, 1)))
        values_nt[every_n, outcomes.lengths_n] = self._final_values(outcomes)
        advantages_nt, running_n = np.zeros(mask_nt.shape), np.zeros(samples)
        for t in reversed(range(longest)):
            delta_n = rewards_nt[:, t] + self.gamma * values_nt[:, t + 1] - values_nt[:, t]
            running_n = np.where(mask_nt[:, t], delta_n + self.gamma * lam * running_n, 0.0)
            advantages_nt[:, t] = running_n
        return advantages_nt
