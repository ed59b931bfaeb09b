"""Environment ``wild``: a tool that does everything wrong, by the number of the prompt.

In a group only episodes whose first answer has an even number of tokens are affected. What it gives
depends on a file, so that it may differ after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from rlax_plugin.api import Extension, NoOptions, Outcome, Prompt, Session, hookimpl

KINDS = ("hangs", "raises", "prints", "says", "mistaken", "begins", "huge", "plain")
MEGABYTE = 1 << 20


class Wild:
    def first(self, prompt: Prompt) -> np.ndarray:
        return prompt.tokens

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        kind = KINDS[int(prompt.text) % len(KINDS)]
        if len(session.answer.tokens) % 2 == 0:
            if kind == "hangs":
                await asyncio.sleep(3600)
            if kind == "raises":
                raise RuntimeError("\x1b[31mthe tool broke\ud800")
            if kind == "prints":
                print("x" * MEGABYTE)
            if kind == "says":
                return Outcome(text="y" * MEGABYTE)
            if kind == "mistaken":
                await session.sample([10**6])
            while kind == "begins":
                await session.begin([5])
            if kind == "huge":
                await session.sample("0" * MEGABYTE)
        changed = Path("changed").exists()
        await session.sample("7" if changed else "5")
        # The turn is recorded before the group is scored, and at first there is time for a kill.
        await asyncio.sleep(0.5 if changed else 2.0)
        return Outcome(rewards=(0.0, 0.25), metrics={"tools": 1.0})


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {"wild": Extension(NoOptions, lambda config, context: Wild())}
