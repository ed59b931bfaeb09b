"""Tracker ``tensorboard``: every metric as a scalar event, below ``<run_dir>/tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlax_plugin import BuildContext, Extension, NoOptions, hookimpl
from rlax_plugin.protocols import Tracker


class TensorBoard(Tracker):
    """Writes through tensorboardX, whose writer thread keeps ``log`` short."""

    def __init__(self, directory: str) -> None:
        from tensorboardX import SummaryWriter  # 0.5 s of imports that only the trainer pays

        self._writer: Any = SummaryWriter(directory, flush_secs=10)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


@hookimpl
def rlax_register_tracker() -> dict[str, Extension]:
    def build(config: NoOptions, context: BuildContext) -> TensorBoard:
        return TensorBoard(str(context.run_dir / "tensorboard"))

    return {"tensorboard": Extension(NoOptions, build)}
