"""What the engine can do, as its worker declares it."""

from __future__ import annotations

from rlax_plugin.api import SIDE_CHANNELS, Capabilities, Rollouts

SERVICE = "jetstream_proto.Orchestrator"
"""The gRPC service that other programs call."""


def capabilities(rollouts: Rollouts, vocabulary: int, max_context: int) -> Capabilities:
    """Of an engine with these limits.

    Args:
      vocabulary: of the model; 0: the slots are not built yet.
      max_context: tokens of the longest context.
    """
    return Capabilities(
        slots=rollouts.slots,
        vocabulary=vocabulary,
        context_tokens=max_context + rollouts.max_new_tokens,
        side=SIDE_CHANNELS,
        seeded=True,
        logprobs=True,
        resumes=True,
        stop_strings=True,
    )
