"""Config of how long the records of a run are kept."""

from __future__ import annotations

from pydantic import Field

from rlax_plugin.config.base import PositiveInt, Section


class Retention(Section):
    """Retention of a run's records.

    Records that the two newest checkpoints need are never removed, so a run can always be resumed.
    """

    samples_steps: PositiveInt | None = Field(
        default=None,
        description="number of newest steps whose samples are kept; older ones are removed at the "
        "next checkpoint. null: all are kept",
    )
