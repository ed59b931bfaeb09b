"""Config of training on samples that were recorded before the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.config.base import PathText, Section


class LoggedSamples(Section):
    """Samples to train on in place of rollouts: offline, with a log that does not grow.

    Groups are taken in the order of the log, and from its beginning again once all were taken.
    """

    path: PathText = Field(
        default="",
        description="directory of another run, or a Parquet table (docs/your_demonstrations.md); a "
        "relative path is relative to the config. Empty: the run generates its samples",
    )
    min_reward: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="smallest reward of a sample that is kept; null: all are"
    )
    keep: Literal["all", "best"] = Field(
        default="all",
        description="best: of each group only the sample with the highest reward, the first of "
        "several",
    )
