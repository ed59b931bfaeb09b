"""Options of the rollout engine ``jetstream``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlax_plugin.api import PositiveInt, Rollouts, Section

SERVICE = "jetstream_proto.Orchestrator"
"""The gRPC service that other programs call."""

_LONGEST_CALL = 256  # decode steps, where nothing is to be looked for but that the engine is alive


class JetstreamConfig(Section):
    """Generates with MaxText's MaxEngine and continuous batching, and serves JetStream's API."""

    arrival_steps: PositiveInt = Field(
        4, description="number of decode steps between checks for new requests while slots are free"
    )
    linger_steps: Annotated[int, Field(ge=0, le=2)] = Field(
        2,
        description="number of decode steps for which a free slot may stay empty until more slots "
        "are free, so that one prefill fills several of them",
    )
    stop_string_steps: PositiveInt = Field(
        8,
        description="number of decode steps between checks for stop strings, if the prompt source "
        "has some; up to so many tokens are generated behind one, and dropped",
    )
    interrupt_steps: PositiveInt = Field(
        32,
        description="number of decode steps between checks for calls that JetStream clients "
        "have cancelled; with on_new_weights: continue or discard, also for new weights; with "
        "continue, a report that progress_s makes due is sent at the next such check",
    )
    warm_up: bool = Field(
        True,
        description="true: compile all programs, including at most ten for prefill, and six more "
        "where contexts are kept, before the worker registers, so that no request waits for a "
        "compilation",
    )
    keep_contexts: bool = Field(
        True,
        description="true: where episodes have several turns, a free slot keeps the context of its "
        "last sample until it is needed, so that the next turn prefills only what is new. It has "
        "no effect with rlax.deterministic, with quantize_kvcache, after new weights, and for "
        "models with recurrent layers, compressed or chunked attention, MoBA or an indexer",
    )
    maxtext: dict[str, bool | int | float | str] = Field(
        {},
        description="MaxText keys that workers set differently from the trainer, such as their "
        "mesh",
    )

    def longest_call(self, rollouts: Rollouts) -> int:
        """Maximum decode steps of one call; heartbeats report its tokens only after it returns."""
        if rollouts.on_new_weights == "finish":
            return min(_LONGEST_CALL, rollouts.max_new_tokens)
        return self.interrupt_steps
