"""Environment ``fickle``: it raises, hangs, ends its process or leaves early, by chance.

The chance is another one in each process, so that what broke once need not break again.
"""

import asyncio
import os
import random
import time
from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.api import Environment, Extension, Outcome, Prompt, Session, hookimpl
from rlax_plugin.config import Section

KINDS = ("raises", "hangs", "sleeps", "ends")
HANGS_S = 3600.0


class FickleConfig(Section):
    seed: int = Field(default=0, description="of the chance, together with the process id")
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.05, description="of the calls in which something happens"
    )


class Chance:
    def __init__(self, config: FickleConfig):
        self._random = random.Random(f"{config.seed} {os.getpid()}")
        self._share = config.share

    def happens(self) -> str:
        """What happens now; empty: nothing."""
        return self._random.choice(KINDS) if self._random.random() < self._share else ""


class FickleTool(Environment):
    """Answers every turn with a number, until it has had enough."""

    def __init__(self, config: FickleConfig):
        self._chance, self._leaves = Chance(config), random.Random(config.seed)

    def first(self, prompt: Prompt) -> np.ndarray:
        return prompt.tokens

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        while session.turns_left and self._leaves.random() < 0.8:
            await _misbehave(self._chance.happens())
            await session.sample("5")
        return Outcome(metrics={"tools": 1.0})


async def _misbehave(kind: str) -> None:
    if kind == "raises":
        raise RuntimeError("the tool broke")
    if kind == "hangs":
        await asyncio.sleep(HANGS_S)
    if kind == "sleeps":
        time.sleep(HANGS_S)  # nothing else in this process goes on either
    if kind == "ends":
        os._exit(3)


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {"fickle": Extension(FickleConfig, lambda config, context: FickleTool(config))}
