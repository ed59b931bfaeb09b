"""Config of how long the records of a run are kept."""

from __future__ import annotations

from typing import Annotated

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
    samples_bytes: Annotated[int, Field(ge=1, lt=2**63)] | None = Field(
        default=None,
        description="bytes that all files of samples may have together; at each checkpoint the "
        "oldest are removed until they fit. null: no limit",
    )
    snapshots: bool = Field(
        default=True,
        description="true: the run state that was saved with a checkpoint is removed once the "
        "trainer has removed that checkpoint",
    )

    @property
    def keeps_all_samples(self) -> bool:
        return self.samples_steps is None and self.samples_bytes is None
