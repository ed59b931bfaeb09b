"""The tracker ``tensorboard``: every metric as a scalar event, below ``<run_dir>/tensorboard``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlax_plugin.api import (
    BackgroundTracker,
    BuildContext,
    Extension,
    Sink,
    TrackerConfig,
    hookimpl,
)


class TensorboardConfig(TrackerConfig):
    """Writes event files for TensorBoard."""


class EventFile(Sink):
    """Writes through tensorboardX."""

    last_step = 0

    def __init__(self, run_dir: Path) -> None:
        self._directory = str(run_dir / "tensorboard")
        self._writer: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            from tensorboardX import SummaryWriter  # 0.5 s of imports

            # What an earlier process logged from here on is hidden: it is logged again. Files are
            # named and ordered by the second: one that is opened within the same second would
            # replace the other.
            self._writer = SummaryWriter(
                self._directory,
                purge_step=step,
                flush_secs=10,
                filename_suffix=f".{time.time_ns()}",
            )
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, complete: bool) -> None:
        if self._writer is not None:
            self._writer.close()


@hookimpl
def rlax_register_tracker() -> dict[str, Extension]:
    def build(config: TensorboardConfig, context: BuildContext) -> BackgroundTracker:
        return BackgroundTracker(
            "tensorboard", lambda run: EventFile(run.directory), context, config.flush_s
        )

    return {"tensorboard": Extension(TensorboardConfig, build)}
