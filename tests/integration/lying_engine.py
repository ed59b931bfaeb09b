"""Rollout engine ``lying``: the toy engine; on one worker every so many answers are nonsense."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rlax_plugin.api import Extension, hookimpl
from rlax_plugin.build import build_weight_store
from rlax_plugin.testing.engine import WORKER, ScriptedConfig, ScriptedEngine


class LyingConfig(ScriptedConfig):
    every: int = 5
    liar: str = "local-1"
    once: str = ""  # a file; there are no lies before it is there


class LyingEngine(ScriptedEngine):
    def __init__(self, config, store, section):
        super().__init__(config, store, section)
        self._lies, self._answered = config, 0

    async def generate(self, requests, on_reply):
        def lie(key, samples):
            lies = os.environ.get(WORKER) == self._lies.liar and Path(self._lies.once).exists()
            self._answered += lies
            if lies and self._answered % self._lies.every == 0:
                samples = [dataclasses.replace(s, logprobs=-s.logprobs) for s in samples]
            on_reply(key, samples)

        await super().generate(requests, lie)


@hookimpl
def rlax_register_rollout_engine():
    def build(config, context):
        return LyingEngine(config, build_weight_store(context), context.section)

    return {"lying": Extension(LyingConfig, build)}
