"""Trainer and engine ``held``: toys that wait for files that a test writes.

The trainer begins a step only once that step's file is there. So a test can have something happen
between two steps, however slow the machine is. No deadline runs while a step is held: workers go
on, and the batch is not waited for yet.

The engine answers an evaluation of one version only once a file is there, and says in another file
that it has been asked. So a test can do something to a worker that is evaluating.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_plugin.base.types import Key, Request, Sampled
from rlax_plugin.build import build_weight_store
from rlax_plugin.rollout.worker.endpoint import NAME as WORKER
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
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


class HeldEngineConfig(ScriptedConfig):
    evaluation_of: int = Field(default=-1, description="the version whose evaluation waits")
    asked: str = Field(default="asked", description="gets the worker's name once it is asked")
    waits_for: str = Field(default="answer", description="the file that it waits for")


class HeldEngine(ScriptedEngine):
    async def _group(
        self, request: Request, on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        config = self._config
        assert isinstance(config, HeldEngineConfig)
        evaluates = request.key.purpose == "evaluate"
        if evaluates and request.min_version == config.evaluation_of:
            go, asked = Path(config.waits_for), Path(config.asked)
            if not go.exists():
                # Each of an evaluation's groups comes here, and a test may be reading the file.
                whole = asked.with_name(f"{asked.name}.{os.getpid()}")
                whole.write_text(os.environ[WORKER])
                whole.replace(asked)
            while not go.exists():
                await asyncio.sleep(0.02)
        await super()._group(request, on_reply)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: HeldEngineConfig, context: BuildContext) -> HeldEngine:
        return HeldEngine(config, build_weight_store(context), context.section)

    return {"held": Extension(HeldEngineConfig, build)}
