"""Rollout engine ``lying``: the toy engine; on one worker every so many answers are nonsense."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from rlax_plugin.api import Extension, hookimpl
from rlax_plugin.build import build_weight_store
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.types import SideSpec
from rlax_plugin.worker.process import NAME as WORKER


class LyingConfig(ScriptedConfig):
    every: int = 5
    liar: str = "local-1"
    lie: str = "high"  # or low: of log-probs; or tokens, without a word on its vocabulary;
    # or side; or near or far: log-probs that are off by so much in every sample
    once: str = ""  # a file; there are no lies before it is there


class LyingEngine(ScriptedEngine):
    def __init__(self, config, store, section):
        super().__init__(config, store, section)
        self._lies, self._answered = config, 0

    @property
    def capabilities(self):
        had = super().capabilities
        if self._lies.lie == "tokens":
            return dataclasses.replace(had, vocabulary=0)
        wide = self._lies.lie == "side" and os.environ.get(WORKER) == self._lies.liar
        more = {f"wide{number}": SideSpec("int8", (1 << 16,)) for number in range(60)}
        return dataclasses.replace(had, side={**had.side, **more}) if wide else had

    def _wrong(self, sampled):
        if self._lies.lie == "tokens":
            return {"tokens": np.array([10**9, *sampled.tokens[1:]], np.int32)}
        low = np.full_like(sampled.logprobs, -3e38)
        return {"logprobs": -sampled.logprobs if self._lies.lie == "high" else low}

    async def generate(self, requests, on_reply):
        def lie(key, samples):
            liar = os.environ.get(WORKER) == self._lies.liar
            if liar and (off := {"near": 2.0, "far": 69.0}.get(self._lies.lie)):
                samples = [dataclasses.replace(s, logprobs=s.logprobs - off) for s in samples]
            lies = liar and Path(self._lies.once).exists()
            self._answered += lies
            if lies and self._answered % self._lies.every == 0:
                samples = [dataclasses.replace(s, **self._wrong(s)) for s in samples]
            on_reply(key, samples)

        await super().generate(requests, lie)


@hookimpl
def rlax_register_rollout_engine():
    def build(config, context):
        return LyingEngine(config, build_weight_store(context), context.section)

    return {"lying": Extension(LyingConfig, build)}
