"""Environment ``guessing``: the policy finds a secret digit, and learns which way it was wrong."""

import numpy as np
from pydantic import Field

from rlax_plugin import api


class GuessingConfig(api.Section):
    turns: int = Field(default=5, ge=1, description="guesses that the policy has")
    question: str = Field(default="g", description="what the policy is given first")
    higher: str = Field(default="h", description="what it is given after a guess that is too low")
    lower: str = Field(default="l", description="what it is given after a guess that is too high")


class Guessing(api.Environment):
    deterministic = True  # it has no state, and no randomness

    def __init__(self, config: GuessingConfig, question: np.ndarray):
        self._config, self._question = config, question

    def first(self, prompt: api.Prompt) -> np.ndarray:
        return self._question  # not the prompt, which ends with the secret

    async def play(self, prompt: api.Prompt, session: api.Session) -> api.Outcome:
        config, secret, answer = self._config, prompt.text[-1], session.answer
        rewards: list[float] = []
        while answer.text != secret and len(rewards) < config.turns - 1:
            rewards.append(_paid(answer.text, secret))
            way = config.higher if answer.text < secret else config.lower
            try:
                answer = await session.sample(way)
            except api.EpisodeLimit:
                return api.Outcome(rewards=tuple(rewards), ended="cut")
        rewards.append(_paid(answer.text, secret))
        found = float(answer.text == secret)
        return api.Outcome(rewards=tuple(rewards), metrics={"found": found})


def _paid(guess: str, secret: str) -> float:
    return 1.0 if guess == secret else -0.1 if guess in tuple("0123456789") else -0.2


@api.hookimpl
def rlax_register_environment() -> dict[str, api.Extension]:
    def build(config: GuessingConfig, context: api.BuildContext) -> Guessing:
        choice = context.section.prompt_source
        source = context.part("prompt_source", choice, "rlax.prompt_source")
        return Guessing(config, np.array(source.encode_given(config.question), np.int32))

    return {"guessing": api.Extension(GuessingConfig, build)}
