"""Parts that fail when told: a file of a directory, named after the part, says how.

``engine`` has the name of the worker whose engine generates nothing. While ``environment`` exists,
episodes block. The store is ``unreliable`` of ``chaos.unreliable_store``.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from rlax_plugin.api import (
    BuildContext,
    Environment,
    Extension,
    Outcome,
    Prompt,
    Section,
    Session,
    hookimpl,
)
from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.task import decode

if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
    # Its clock_nanosleep rejects the absolute times that Python's sleep gives it.
    time.sleep = lambda seconds: threading.Event().wait(seconds)

_LOOK_S = 0.05


class TroubledConfig(Section):
    directory: str


def _told(directory: str, part: str) -> str | None:
    try:
        return Path(directory, part).read_text()
    except FileNotFoundError:
        return None


class Slow(Clock):
    """Does not go on while the engine of this worker is to hang."""

    def __init__(self, directory: str):
        self._directory = directory
        self._name = sys.argv[sys.argv.index("--name") + 1] if "--name" in sys.argv else ""

    async def sleep(self, seconds: float) -> None:
        while seconds and self._name and _told(self._directory, "engine") == self._name:
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(seconds)


class Blocking(Environment):
    deterministic = True

    def __init__(self, directory: str):
        self._directory = directory

    def first(self, prompt: Prompt) -> np.ndarray:
        return prompt.tokens

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        while _told(self._directory, "environment") is not None:
            time.sleep(_LOOK_S)
        return Outcome()


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: TroubledConfig, context: BuildContext) -> ScriptedEngine:
        store = context.part("weight_store", context.section.weights.store, "store")
        scripted = ScriptedConfig(token_s=0.005)
        clock = Slow(config.directory)
        return ScriptedEngine(scripted, store, context.section, decode, clock)

    return {"troubled": Extension(TroubledConfig, build)}


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {"troubled": Extension(TroubledConfig, lambda config, _: Blocking(config.directory))}
