"""Rollout engine ``lying``: the toy engine; on one worker every so many answers are nonsense."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from rlax_plugin.api import Extension, hookimpl
from rlax_plugin.base.types import SideSpec
from rlax_plugin.build import build_weight_store
from rlax_plugin.rollout.worker.endpoint import NAME as WORKER
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine


class LyingConfig(ScriptedConfig):
    every: int = 5
    liar: str = "local-1"
    lie: str = "tokens"  # without a word on its vocabulary; or side
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

    async def generate(self, requests, on_reply):
        def lie(key, samples):
            lies = os.environ.get(WORKER) == self._lies.liar and Path(self._lies.once).exists()
            self._answered += lies
            if lies and self._answered % self._lies.every == 0:
                wrong = [np.array([10**9, *s.tokens[1:]], np.int32) for s in samples]
                both = zip(samples, wrong, strict=True)
                samples = [dataclasses.replace(s, tokens=tokens) for s, tokens in both]
            on_reply(key, samples)

        await super().generate(requests, lie)


@hookimpl
def rlax_register_rollout_engine():
    def build(config, context):
        return LyingEngine(config, build_weight_store(context), context.section)

    return {"lying": Extension(LyingConfig, build)}
