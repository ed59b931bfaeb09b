"""Aggregations: inputs -> (weights_bt, total weight). Micro-batches add up sums and weights.

N counts the sequences with at least one trained token, so not errored samples and padding rows.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlax_plugin.api import (
    Aggregation,
    BuildContext,
    ConfigError,
    PositiveInt,
    Section,
    TokenInputs,
)


class _Counting(Section):
    """An aggregation whose denominators count trained tokens, or those that are kept of them."""

    count: Literal["trained", "kept"] = Field(
        "trained",
        description="tokens in the denominators and in the mean over a sequence: trained: all that "
        "train; kept: those that no correction that is a mask rejects, as in verl",
    )

    @property
    def counts_kept(self) -> bool:
        return self.count == "kept"


class SequenceMean(_Counting):
    """agg = 1/(N len_i): the mean over sequences of the mean over the tokens of each.

    The divisor of the loss is N, the number of sequences.

    GRPO, https://arxiv.org/abs/2402.03300.
    """

    def __call__(self, inputs: TokenInputs) -> tuple[Any, Any]:
        return inputs.mask_bt / inputs.length_bt.clip(1), inputs.sequence_count()


class TokenMean(_Counting):
    """agg = 1/sum_i len_i: the mean over all trained tokens of the mini-batch.

    The divisor of the loss is the number of these tokens.

    DAPO, https://arxiv.org/abs/2503.14476.
    """

    def __call__(self, inputs: TokenInputs) -> tuple[Any, Any]:
        return inputs.mask_bt, inputs.mask_bt.sum()


class SequenceSum(_Counting):
    """agg = 1/N: the mean over sequences of the sum over the tokens of each.

    The divisor of the loss is N, the number of sequences.

    With grad_1 = ``log_prob`` the sum over a sequence is A log pi(sequence). RLOO,
    https://arxiv.org/abs/2402.14740.
    """

    def __call__(self, inputs: TokenInputs) -> tuple[Any, Any]:
        return inputs.mask_bt, inputs.sequence_count()


def prompt_mean(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/(P n_g): the mean over groups of the mean over the tokens of each group.

    P is the number of groups in the mini-batch, n_g the number of trained tokens of the group, in
    all of its samples. So every prompt has the same share of the loss. The ``prompt_mean`` of
    SkyRL, https://github.com/NovaSky-AI/SkyRL.

    The divisor of the loss is N, the number of sequences, by which the weights are multiplied: N
    and P are those of the whole mini-batch.
    """
    share_bt = inputs.update_sequences_bt / inputs.update_groups_bt.clip(1)
    return inputs.mask_bt * share_bt / inputs.group_tokens_bt.clip(1), inputs.sequence_count()


class ConstantLength(_Counting):
    """agg = 1/(N L_max): the sum over tokens, divided by a constant length and by N.

    The divisor of the loss is N, the number of sequences. A sequence is a trajectory: an episode of
    three trajectories counts three times in N, and the sum over all of its tokens is divided by
    N L_max like that of an episode of one. L_max does not depend on how many trajectories an
    episode has: its default is the largest number of tokens that one trajectory may sample, so that
    all trajectories of an episode together may have more than L_max.

    Dr. GRPO, https://arxiv.org/abs/2503.20783, as most libraries implement it. With ``divisor:
    length`` it is the sum over all tokens divided by L_max alone, as in ROLL.
    """

    max_tokens: PositiveInt | None = Field(
        None,
        description="L_max, the constant that divides the sums over tokens; null: "
        "rlax.rollouts.max_new_tokens; with several turns, the tokens that one trajectory may "
        "sample: the smaller one of rlax.episodes.max_turns x rlax.rollouts.max_new_tokens and "
        "rlax.episodes.max_tokens",
    )
    divisor: Literal["sequences_and_length", "length"] = Field(
        "sequences_and_length",
        description="divisor of the sum over all tokens: N L_max, or L_max alone",
    )

    def check_together(self) -> None:
        if self.divisor == "length" and self.counts_kept:
            reason = "has no effect with divisor: length, which counts no sequences"
            raise ConfigError("count", self.count, reason)


class _ConstantLength:
    """The aggregation, with its L_max."""

    def __init__(self, config: ConstantLength, max_tokens: int):
        self._divisor, self._max_tokens = config.divisor, max_tokens
        self.counts_kept = config.counts_kept

    def __call__(self, inputs: TokenInputs) -> tuple[Any, Any]:
        weights_bt = inputs.mask_bt / self._max_tokens
        if self._divisor == "length":  # N cancels; it is that of the whole mini-batch
            weights_bt = weights_bt * inputs.update_sequences_bt
        return weights_bt, inputs.sequence_count()


def build_constant_length(config: ConstantLength, context: BuildContext) -> Aggregation:
    """Returns the aggregation, with L_max from the run unless the config sets it."""
    return _ConstantLength(config, config.max_tokens or context.section.sampled_tokens)
