"""Options of the rollout engine ``jetstream``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlax_plugin.api import SlotsConfig

SERVICE = "jetstream_proto.Orchestrator"
"""The gRPC service that other programs call."""


class JetstreamConfig(SlotsConfig):
    """Generates with MaxText's MaxEngine and continuous batching, and serves JetStream's API."""

    quantization: Literal["int8"] | None = Field(
        None,
        description="int8: samples are generated with the matrices of attention and MLPs in 8 "
        "bits, one scale for each output; versions are verified before they are converted. It "
        "needs a correction in rlax.objective",
    )
