"""Engine, reward and trainer ``faulty``: the toys of ``rlax_plugin.testing``, which fail as told.

The engine may not be built, or holds wrong weights: between a store and an engine they are damaged
in the ways that the checks of weights find. The reward raises for one prompt, and the
trainer fails at one step.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlax_plugin.api import BuildContext, Extension, Prompt, Section, WorkerError, hookimpl
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.build import build_weight_store
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.rollout.worker.endpoint import NAME as WORKER
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.task import Even
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer

WeightFault = Literal[
    "",
    "flipped_bit",
    "truncated_file",
    "renamed_parameter",
    "swapped_tensors",
    "stale_version",
    "wrong_use",
    "wrong_decoding",
]


class FaultyStore(WeightStore):
    """Reads through another store, and damages the arrays or bytes that are read.

    Args:
      store: keeps each version as files directly in its directory, such as ``npz`` does.
      fault: ``flipped_bit`` and ``truncated_file`` damage a copy of the bytes, for the store's own
        checksums to find; the others change what the store returns.
      held: the weights of an earlier version, for ``stale_version``.
    """

    def __init__(self, store: WeightStore, fault: WeightFault, held: Arrays):
        self._store, self._fault, self._held = store, fault, held

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        if self._fault in ("flipped_bit", "truncated_file"):
            with tempfile.TemporaryDirectory(prefix="rlax-fault-") as copy:
                self._damaged_copy(path, Path(copy))
                return self._store.load(copy, like)
        arrays = self._store.load(path, like)
        if self._fault == "renamed_parameter":
            name = min(arrays)
            arrays[f"{name}_renamed"] = arrays.pop(name)
        if self._fault == "swapped_tensors":
            first, second = _equal_shapes(arrays)
            arrays[first], arrays[second] = arrays[second], arrays[first]
        if self._fault == "stale_version":
            arrays = dict(self._held)
        return arrays

    def save(self, path: str, arrays: Arrays) -> None:
        self._store.save(path, arrays)

    def delete(self, path: str) -> None:
        self._store.delete(path)

    def _damaged_copy(self, path: str, copy: Path) -> None:
        files = RunFiles(path)
        for name in files.names(""):
            data = bytearray(files.get(name))
            if self._fault == "flipped_bit":
                data[len(data) // 2] ^= 1
            else:
                del data[len(data) // 2 :]
            (copy / name).write_bytes(data)


def _equal_shapes(arrays: Arrays) -> tuple[str, str]:
    names = sorted(arrays)
    return next(
        (first, second)
        for index, first in enumerate(names)
        for second in names[index + 1 :]
        if arrays[first].shape == arrays[second].shape
    )


class FaultyEngineConfig(ScriptedConfig):
    """Options of the engine.

    Attributes:
      broken: True to raise an error when it is built.
      weight_fault: ``flipped_bit`` or ``truncated_file`` (in a copy of the file),
        ``renamed_parameter``, ``swapped_tensors`` or ``stale_version`` (in memory), ``wrong_use``
        (the loaded weights are right, but others are used) or ``wrong_decoding`` (others are used
        only to generate, not for prefill); empty: none.
      fault_at_version: version at which it occurs, at every attempt.
      fault_worker: name of the worker with the fault; empty: all workers.
    """

    broken: bool = False
    weight_fault: WeightFault = ""
    fault_at_version: int = 1
    fault_worker: str = ""


class FaultyEngine(ScriptedEngine):
    """The scripted engine with a fault of weights."""

    _right: Loaded | None = (
        None  # the weights without a fault, of which it only says that it uses them
    )

    def _fault(self, version: int) -> WeightFault:
        config = self._config
        assert isinstance(config, FaultyEngineConfig)
        here = config.fault_worker in ("", os.environ.get(WORKER))
        return config.weight_fault if here and version == config.fault_at_version else ""

    async def load(self, version: WeightVersion) -> Loaded:
        store = self._store
        if fault := self._fault(version.version):
            self._store = FaultyStore(store, fault, self._loaded.arrays if self._loaded else {})
        try:
            return await super().load(version)
        finally:
            self._store = store

    async def use(self, loaded: Loaded) -> None:
        await super().use(self._decodes_with(loaded))
        self._right = loaded

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        used = loaded or self._right
        if used is not None and self._fault(used.version) == "wrong_use":
            used = _with_wrong_table(used)
        return await super().score(tokens, used)

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray]:
        return await super().decode_greedy(tokens, count, self._decodes_with(loaded))

    def _decodes_with(self, loaded: Loaded) -> Loaded:
        wrong = self._fault(loaded.version) in ("wrong_use", "wrong_decoding")
        return _with_wrong_table(loaded) if wrong else loaded


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


class FaultyTrainerConfig(BigramConfig):
    """The step at which training fails."""

    fail_at: int


class FaultyTrainer(BigramTrainer):
    def run(self, port: Any) -> None:
        super().run(_FailingPort(port, self._config.fail_at))


class _FailingPort:
    def __init__(self, port: Any, fail_at: int):
        self._port, self._fail_at = port, fail_at

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        batch = self._port.next_batch(step)
        if step == self._fail_at:
            raise RuntimeError("the trainer broke")
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: FaultyEngineConfig, context: BuildContext) -> FaultyEngine:
        if config.broken:
            raise WorkerError("this engine is broken")
        return FaultyEngine(config, build_weight_store(context), context.section)

    return {"faulty": Extension(FaultyEngineConfig, build)}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"faulty": Extension(FaultyRewardConfig, lambda config, context: FaultyReward(config))}


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {
        "faulty": Extension(FaultyTrainerConfig, FaultyTrainer.build, FaultyTrainer.check),
    }
