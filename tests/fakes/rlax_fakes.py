"""Fakes for tests of the processes around the model: no JAX, everything else is real.

Engine ``scripted`` draws tokens from the sample's seed, trainer ``counting`` adds numbers, weight
store ``npz`` writes numpy files. Controller, gRPC, parameter server, workers and reward processes
are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin import BuildContext, Extension, NoOptions, Section, hookimpl
from rlax_plugin.build import build_weight_store
from rlax_plugin.errors import WeightsError, WorkerError
from rlax_plugin.protocols import TrainerLink, WeightStore
from rlax_plugin.types import GroupRequest, Prompt, Rollout, WeightVersion

STOP = 1


class Numbers:
    """Prompts "0", "1", ...; a completion says how many of its tokens are even."""

    stop_ids = (STOP,)

    def prompts(self, split: str) -> Sequence[Prompt]:
        start = {"train": 0, "validation": 1000, "test": 2000}[split]
        return [
            Prompt(f"p{n}", np.array([n % 50 + 2, 3], dtype=np.int32), str(n), str(n))
            for n in range(start, start + 64)
        ]

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(str(t) for t in tokens if t != STOP)


class EvenConfig(Section):
    hang_on: str = ""
    raise_on: str = ""


class Even:
    """1.0 if the first token is even. Hangs or raises on the prompts named in its options."""

    def __init__(self, config: EvenConfig):
        self._config = config

    def __call__(self, prompt: Prompt, completion: str) -> float:
        if prompt.text == self._config.hang_on:
            time.sleep(3600)
        if prompt.text == self._config.raise_on:
            raise ValueError("cannot judge this")
        return float(int(completion.split()[0]) % 2 == 0) if completion else 0.0


class ScriptedConfig(Section):
    latency_s: float = 0.0
    load_s: float = 0.0
    broken: bool = False


class Scripted:
    """Draws each sample's tokens from its seed alone; takes ``latency_s`` per call."""

    def __init__(self, config: ScriptedConfig, store: WeightStore):
        if config.broken:
            raise WorkerError("this engine is broken")
        self._config, self._store = config, store
        self._version = -1
        self._newer = asyncio.Condition()
        self._tokens = 0

    @property
    def version(self) -> int:
        return self._version

    def health(self) -> dict[str, float]:
        return {"tokens_total": float(self._tokens)}

    async def load_weights(self, version: WeightVersion) -> None:
        await asyncio.sleep(self._config.load_s)
        arrays = self._store.load(version.path, {})
        if float(arrays["steps"][0]) != version.step:
            raise WeightsError(f"{version.path} holds step {arrays['steps'][0]}")
        async with self._newer:
            self._version = version.version
            self._newer.notify_all()

    async def generate(
        self, requests: Sequence[GroupRequest], on_group: Callable[[int, list[Rollout]], None]
    ) -> None:
        for request in requests:
            async with self._newer:
                wanted = request.min_version
                await asyncio.wait_for(
                    self._newer.wait_for(lambda w=wanted: self._version >= w), 30
                )
            version = self._version
            await asyncio.sleep(self._config.latency_s)
            on_group(
                request.group_id,
                [self._draw(request, i, version) for i in range(len(request.seeds))],
            )

    def _draw(self, request: GroupRequest, index: int, version: int) -> Rollout:
        rng = np.random.default_rng(request.seeds[index])
        length = int(rng.integers(2, request.sampling.max_new_tokens + 1))
        tokens = rng.integers(2, 60, size=length).astype(np.int32)
        tokens[-1] = STOP
        self._tokens += length
        logprob = np.full(length, -1.5, dtype=np.float32)
        return Rollout(
            request.group_id,
            index,
            request.seeds[index],
            tokens,
            logprob,
            logprob,
            np.full(length, version, dtype=np.int32),
            "stop",
        )


class Npz:
    """Weight store of one numpy file per version, renamed into place."""

    def save(self, path: str, arrays: Mapping[str, Any]) -> None:
        temporary = Path(path + ".tmp")
        temporary.mkdir(parents=True)
        np.savez(temporary / "weights.npz", **arrays)
        os.rename(temporary, path)

    def load(self, path: str, like: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with np.load(Path(path) / "weights.npz", allow_pickle=False) as file:
                return dict(file)
        except OSError as error:
            raise WeightsError(f"{path}: {error}") from error

    def delete(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)


class CountingConfig(Section):
    train_s: float = 0.0
    checkpoint_every: int = 5
    fail_at: int = 0


class Counting:
    """A trainer whose only weight counts its steps; checkpoints are JSON files."""

    def __init__(self, config: CountingConfig, context: BuildContext, steps: int):
        self._config, self._steps = config, steps
        self._checkpoints = context.run_dir / "checkpoints"

    def _checkpoint(self, link: TrainerLink, step: int) -> None:
        link.before_checkpoint(step)
        self._checkpoints.mkdir(exist_ok=True)
        temporary = self._checkpoints / "tmp"
        temporary.write_text(json.dumps({"step": step}))
        os.replace(temporary, self._checkpoints / "latest.json")

    def run(self, link: TrainerLink) -> None:
        latest = self._checkpoints / "latest.json"
        start = json.loads(latest.read_text())["step"] if latest.exists() else 0
        link.publish(start, {"steps": np.array([start], dtype=np.float32)})
        for step in range(start + 1, self._steps + 1):
            batch = link.next_batch(step)
            assert set(batch) >= {"inputs", "targets", "rl_mask", "rl_advantages"}
            time.sleep(self._config.train_s)
            if step == self._config.fail_at:
                raise RuntimeError("the trainer broke")
            mask = batch["rl_mask"] > 0
            sums = {"tokens": mask.sum(), "rows": mask.any(axis=1).sum(), "gap_count": 0}
            link.step_done(step, sums)
            link.publish(step, {"steps": np.array([step], dtype=np.float32)})
            if link.stop_requested or step % self._config.checkpoint_every == 0:
                self._checkpoint(link, step)
            if link.stop_requested:
                return
        self._checkpoint(link, self._steps)


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"numbers": Extension(NoOptions, lambda config, context: Numbers())}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"even": Extension(EvenConfig, lambda config, context: Even(config))}


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    return {
        "scripted": Extension(
            ScriptedConfig, lambda config, context: Scripted(config, build_weight_store(context))
        )
    }


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    return {"npz": Extension(NoOptions, lambda config, context: Npz())}


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    def build(config: CountingConfig, context: BuildContext) -> Counting:
        from rlax_plugin.loading import load_section

        _, maxtext = load_section(context.maxtext_argv[0], context.maxtext_argv[1:])
        return Counting(config, context, int(maxtext["steps"]))

    return {"counting": Extension(CountingConfig, build)}
