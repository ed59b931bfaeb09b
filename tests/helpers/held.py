"""Trainer ``held``: the toy trainer; it begins a step only once a file of that step's is there.

So a test can have something happen between two steps, however slow the machine is. No deadline
runs while a step is held: workers go on, and the batch is not waited for yet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer


class HeldConfig(BigramConfig):
    waits: dict[int, str] = Field(default={}, description="step -> the file it waits for")


class _HeldPort:
    """A trainer port whose batches are asked for only once their steps may begin."""

    def __init__(self, port: Any, waits: Mapping[int, str]):
        self._port, self._waits = port, waits

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        if step in self._waits:
            file = Path(self._waits[step])
            while not file.exists() and not self._port.stopping:
                time.sleep(0.02)
        return self._port.next_batch(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class HeldTrainer(BigramTrainer):
    def run(self, port: Any) -> None:
        super().run(_HeldPort(port, self._config.waits))


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    def build(config: HeldConfig, context: BuildContext) -> BigramTrainer:
        return HeldTrainer.build(config, context)

    return {"held": Extension(HeldConfig, build, BigramTrainer.check)}
