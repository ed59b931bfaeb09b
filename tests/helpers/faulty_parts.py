"""Engines ``faulty``, ``dying`` and ``hanging``, reward ``faulty``: the toys, which fail as told.

The first engine uses other weights than those that it has loaded. The reward raises for one prompt.
"""

import asyncio
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from rlax_plugin.api import BuildContext, Extension, Prompt, Section, hookimpl
from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import WorkerError
from rlax_plugin.build import build_weight_store
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.rollout.worker.endpoint import NAME as WORKER
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.task import Even


class FaultyEngineConfig(ScriptedConfig):
    """Options of the engine.

    Attributes:
      fault_at_version: version that is loaded rightly, and in whose place others are used.
      fault_worker: name of the worker with the fault.
    """

    fault_at_version: int
    fault_worker: str


class DyingEngine(ScriptedEngine):
    """The scripted engine, which dies as one whose memory does not suffice.

    It does once it holds the version that the environment's ``DIES_AT`` has.
    """

    def health(self) -> dict[str, float]:
        self._look()
        return super().health()

    async def generate(self, requests: Any, on_reply: Any) -> None:
        self._look()
        await super().generate(requests, on_reply)

    def _look(self) -> None:
        if self.version >= int(os.environ.get("DIES_AT", "1000")):
            raise WorkerError("rollout engine: out of memory on device 0")


class HangingEngine(ScriptedEngine):
    """The scripted engine, of which a call does not end, as of a device that has failed.

    It is the first one with the version that the environment's ``HANGS_AT`` has.
    """

    def __init__(self, config: ScriptedConfig, context: BuildContext):
        super().__init__(config, build_weight_store(context), context.section)
        self._generating = context.generating

    async def generate(self, requests: Any, on_reply: Any) -> None:
        if self.version >= int(os.environ.get("HANGS_AT", "1000")):
            await asyncio.wrap_future(on_daemon(self._hang, "hangs"))
        await super().generate(requests, on_reply)

    def _hang(self) -> None:
        with self._generating():
            time.sleep(600)


class FaultyEngine(ScriptedEngine):
    """The scripted engine with a fault of weights."""

    _right: Loaded | None = None  # of which it only says that it uses them

    def _has_fault(self, version: int) -> bool:
        config = self._config
        assert isinstance(config, FaultyEngineConfig)
        return version == config.fault_at_version and os.environ.get(WORKER) == config.fault_worker

    async def use(self, loaded: Loaded) -> None:
        await super().use(self._used(loaded))
        self._right = loaded

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        weights = loaded or self._right
        return await super().score(tokens, weights and self._used(weights))

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray]:
        return await super().decode_greedy(tokens, count, self._used(loaded))

    def _used(self, loaded: Loaded) -> Loaded:
        return _with_wrong_table(loaded) if self._has_fault(loaded.version) else loaded


def _with_wrong_table(loaded: Loaded) -> Loaded:
    table = np.ascontiguousarray(loaded.arrays["table"].T)
    return replace(loaded, arrays={**loaded.arrays, "table": table})


class FaultyRewardConfig(Section):
    raise_on: str = Field(default="", description="text of the prompt for which it raises")


class FaultyReward(Even):
    def __init__(self, config: FaultyRewardConfig):
        self._raise_on = config.raise_on

    def __call__(self, prompt: Prompt, completion: str) -> float:
        if prompt.text == self._raise_on:
            raise ValueError("cannot judge this")
        return super().__call__(prompt, completion)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: FaultyEngineConfig, context: BuildContext) -> FaultyEngine:
        return FaultyEngine(config, build_weight_store(context), context.section)

    def dying(config: ScriptedConfig, context: BuildContext) -> DyingEngine:
        return DyingEngine(config, build_weight_store(context), context.section)

    faulty = Extension(FaultyEngineConfig, build)
    return {
        "faulty": faulty,
        "dying": Extension(ScriptedConfig, dying),
        "hanging": Extension(ScriptedConfig, HangingEngine),
    }


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"faulty": Extension(FaultyRewardConfig, lambda config, context: FaultyReward(config))}
