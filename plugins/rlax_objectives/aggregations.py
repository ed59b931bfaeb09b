"""Aggregations: inputs -> (weights_bt, total weight). Micro-batches add up sums and weights.

N counts the sequences with at least one trained token, so not errored samples and padding rows.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlax_plugin.api import Aggregation, BuildContext, PositiveInt, Section, TokenInputs


def sequence_mean(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/(N len_i): the mean over sequences of the mean over the tokens of each.

    The divisor of the loss is N, the number of sequences.

    GRPO, https://arxiv.org/abs/2402.03300.
    """
    return inputs.mask_bt / inputs.length_bt.clip(1), inputs.sequence_count()


def token_mean(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/sum_i len_i: the mean over all trained tokens of the mini-batch.

    The divisor of the loss is the number of these tokens.

    DAPO, https://arxiv.org/abs/2503.14476.
    """
    return inputs.mask_bt, inputs.mask_bt.sum()


def sequence_sum(inputs: TokenInputs) -> tuple[Any, Any]:
    """agg = 1/N: the mean over sequences of the sum over the tokens of each.

    The divisor of the loss is N, the number of sequences.

    With grad_1 = ``log_prob`` the sum over a sequence is A log pi(sequence). RLOO,
    https://arxiv.org/abs/2402.14740.
    """
    return inputs.mask_bt, inputs.sequence_count()


class ConstantLength(Section):
    """agg = 1/(N L_max): the sum over tokens, divided by a constant length and by N.

    The divisor of the loss is N, the number of sequences. A sequence is a trajectory: an episode of
    three trajectories counts three times in N, and the sum over all of its tokens is divided by
    N L_max like that of an episode of one. L_max does not depend on how many trajectories an
    episode has: its default is the largest number of tokens that one trajectory may sample, so that
    all trajectories of an episode together may have more than L_max.

    Dr. GRPO, https://arxiv.org/abs/2503.20783, as most libraries implement it.
    """

    max_tokens: PositiveInt | None = Field(
        None,
        description="L_max, the constant that divides the sums over tokens; null: "
        "rlax.rollouts.max_new_tokens; with several turns, the tokens that one trajectory may "
        "sample: the smaller one of rlax.episodes.max_turns x rlax.rollouts.max_new_tokens and "
        "rlax.episodes.max_tokens",
    )


def build_constant_length(config: ConstantLength, context: BuildContext) -> Aggregation:
    """Returns the aggregation, with L_max from the run unless the config sets it."""
    max_tokens = config.max_tokens or context.section.sampled_tokens

    def constant_length(inputs: TokenInputs) -> tuple[Any, Any]:
        return inputs.mask_bt / max_tokens, inputs.sequence_count()

    return constant_length
