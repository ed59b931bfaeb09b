"""The speeds that are assumed for the machines until they have been measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlax_plugin.config.base import Seconds, Section

Rate = Annotated[float, Field(gt=0)]


class Assume(Section):
    """Speeds from which rlax check estimates whether deadlines suffice.

    A run uses the speeds that it measures instead.
    """

    tokens_per_s: Rate = Field(
        default=20.0, description="tokens per second of one sequence while a worker decodes"
    )
    prefill_tokens_per_s: Rate = Field(
        default=5000.0, description="prompt tokens per second that a worker prefills"
    )
    bytes_per_s: Rate = Field(
        default=2e8, description="bytes per second when a weight version is written or read"
    )
    startup_s: Seconds = Field(
        default=60.0, description="time until a worker has imported and compiled its model"
    )
