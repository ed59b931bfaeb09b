"""Held-out evaluation through the workers: n samples for each problem, unbiased pass@k."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.dispatch import Dispatcher
from rlax_plugin.controller.requests import sample_seed, sampling_params
from rlax_plugin.controller.rewards import RewardPool
from rlax_plugin.protocols import PromptSource
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import RunFiles
from rlax_plugin.statistics import Estimate, estimate_pass_at_k
from rlax_plugin.types import GroupRequest, Prompt


class Evaluator:
    """Draws and scores the evaluation set at one weight version."""

    def __init__(
        self,
        section: RlaxSection,
        source: PromptSource,
        dispatcher: Dispatcher,
        rewards: RewardPool,
        decode: Callable[..., list[Any]],
    ):
        self._section, self._source = section, source
        self._dispatcher, self._rewards, self._decode = dispatcher, rewards, decode
        self._sampling = sampling_params(section, source)

    async def run(
        self, version: int, progress: Callable[[int, int], None] = lambda done, of: None
    ) -> dict[int, Estimate]:
        """pass@k for each configured k, at exactly the given version or a newer one.

        The same problems and the same seeds every time, so that before and after differ by the
        weights alone. A sample whose reward failed counts as not passed, and is rare enough to be
        an error message of its own in the log of the reward pool.
        """
        settings = self._section.evaluation
        prompts = self._source.prompts(settings.split)[: settings.problems]
        done = 0

        async def one(number: int, prompt: Prompt) -> int:
            nonlocal done
            seeds = tuple(
                sample_seed(self._section.seed, f"eval/{settings.split}", prompt.id, i)
                for i in range(settings.samples)
            )
            # Evaluation groups count downwards from -1: never mistaken for trained ones.
            request = GroupRequest(-1 - number, 1, prompt.tokens, seeds, self._sampling, version)
            _, rollouts, _ = await self._dispatcher.submit(request)
            scored = await self._rewards.score(prompt, self._decode(rollouts))
            threshold = self._section.curation.pass_threshold
            done += 1
            progress(done, len(prompts))
            return sum(r.reward is not None and r.reward >= threshold for r in scored)

        correct = await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))
        return {
            k: estimate_pass_at_k(
                np.array(correct),
                settings.samples,
                k,
                resamples=settings.bootstrap,
                seed=self._section.seed,
            )
            for k in settings.k
        }


def record(files: RunFiles, name: str, version: int, found: dict[int, Estimate]) -> None:
    """Writes ``evaluation/<name>.json``."""
    estimates = {f"pass_at_{k}": e.to_json() for k, e in found.items()}
    files.put_json(f"evaluation/{name}.json", {"version": version, **estimates})
    reached(FaultPoint.EVALUATION_WRITTEN)


def recorded(files: RunFiles, name: str, version: int | None = None) -> dict[int, Estimate]:
    """What ``record`` wrote (for that version): pass@k for each k; empty if it wrote nothing."""
    document = files.get_json(f"evaluation/{name}.json") or {}
    if version not in (None, document.get("version")):
        return {}
    return {
        int(key.removeprefix("pass_at_")): Estimate.from_json(value)
        for key, value in document.items()
        if key.startswith("pass_at_")
    }
