"""The capabilities of the engine, as its worker declares them."""

from __future__ import annotations

from rlax_plugin.api import SIDE_CHANNELS, Capabilities, Rollouts

SERVICE = "jetstream_proto.Orchestrator"
"""The gRPC service that other programs call."""


def capabilities(rollouts: Rollouts, vocabulary: int, max_context: int) -> Capabilities:
    """Capabilities of an engine with these limits.

    Args:
      vocabulary: size of the model's vocabulary; 0: the slots are not built yet.
      max_context: number of tokens of the longest context.
    """
    return Capabilities(
        slots=rollouts.slots,
        vocabulary=vocabulary,
        context_tokens=max_context + rollouts.max_new_tokens,
        side=SIDE_CHANNELS,
        seeded=True,
        logprobs=True,
        resumes=True,
        scores=True,
        stop_strings=True,
    )
