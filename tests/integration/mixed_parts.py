"""Environment ``mixed``: every 16th episode is a program's, and the others are scripted."""

import itertools
import os
from typing import Any

from rlax_http.program import Program, ProgramConfig

from rlax_plugin.api import Environment, Extension, Outcome, Prompt, Session, hookimpl

AT_ONCE = os.environ.get("AT_ONCE")  # a file for the most programs at a time


class Mixed(Environment):
    begins = "play"

    def __init__(self, config: ProgramConfig, context: Any):
        self._program, self._numbers = Program(config, context), itertools.count()
        self._now = self._most = 0

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        if next(self._numbers) % 16 == 0:
            self._now += 1
            if self._now > self._most and AT_ONCE:
                self._most = self._now
                with open(AT_ONCE, "w") as file:
                    print(self._most, file=file)
            try:
                return await self._program.play(prompt, session)
            finally:
                self._now -= 1
        given: Any = prompt.tokens
        right = False
        for turn in range(3):
            answer = await session.sample(given)
            given, right = f"u{turn}", answer.text[:1] in tuple("02468")
        return Outcome(reward=float(right))


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {"mixed": Extension(ProgramConfig, Mixed)}
