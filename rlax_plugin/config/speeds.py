"""What is assumed of the machines as long as nothing has been measured on them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlax_plugin.config.base import Seconds, Section

Rate = Annotated[float, Field(gt=0)]


class Assume(Section):
    """Speeds at which rlax check compares deadlines with the work; a run uses those it measures."""

    tokens_per_s: Rate = Field(
        default=20.0, description="tokens per second of one sequence while a worker decodes"
    )
    prefill_tokens_per_s: Rate = Field(
        default=5000.0, description="prompt tokens per second that a worker prefills"
    )
    bytes_per_s: Rate = Field(
        default=2e8, description="bytes per second, writing or reading a weight version"
    )
    startup_s: Seconds = Field(
        default=60.0, description="seconds until a worker has imported and compiled its model"
    )
