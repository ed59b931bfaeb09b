"""Contract of environments: episodes run, end, and depend on answers as declared."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np

from rlax_plugin.base.types import Prompt
from rlax_plugin.ports.environment import Answer, Environment, EpisodeLimit, Outcome, Session
from rlax_plugin.reward.messages import outcome_to
from rlax_plugin.testing.builders import make_prompt
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial

_PLAY_S = 10.0  # for an episode whose answers come at once
_MOST_TURNS = 6
_TEXTS = ("7", "12", "-12+34=", "", "a\nb", "\ud800", "9" * 5000, "<tool>1</tool>", "yes", "50")


class ScriptedSession(Session):
    """Answers at once with texts chosen by a seed; rejects a further turn beyond the limit.

    Attributes:
      given: inputs from the environment, in order.
      turns: number of answers so far.
    """

    def __init__(self, seed: int, most_turns: int = _MOST_TURNS, *, begun: bool = True):
        self._rng = np.random.default_rng(seed)
        self._most, self.turns = most_turns, 0
        self.given: list[object] = []
        self._first = self._next() if begun else None

    @property
    def answer(self) -> Answer:
        require(self._first is not None, "it read session.answer, but its episodes begin with play")
        assert self._first is not None
        return self._first

    @property
    def turns_left(self) -> int:
        return self._most - self.turns

    @property
    def tokens_left(self) -> int:
        return 100_000

    def _next(self) -> Answer:
        self.turns += 1
        text = str(self._rng.choice(np.array(_TEXTS, object)))
        tokens = self._rng.integers(2, 60, max(1, len(text) % 50)).astype(np.int32)
        return Answer(tokens, text, "stop" if self._rng.random() < 0.8 else "length")

    async def sample(
        self, given: Sequence[int] | str, trajectory: int = 0, **options: object
    ) -> Answer:
        kind = isinstance(given, str) or all(isinstance(t, int | np.integer) for t in given)
        require(kind, f"it gave {given!r}: expected a text, or token ids")
        self.given.append(given if isinstance(given, str) else [int(t) for t in given])
        await asyncio.sleep(0)
        if self.turns_left < 1:
            raise EpisodeLimit("no further turn fits")
        return self._next()

    async def begin(self, context: Sequence[int] | str) -> int:
        self.given.append(context)
        return 1


def check_environment(trial: Trial, part: Inspection) -> None:
    """Checks first prompts, and plays episodes with answers of many kinds on one event loop."""
    with asyncio.Runner() as runner:
        _check(runner, trial, part)


def _check(runner: asyncio.Runner, trial: Trial, part: Inspection) -> None:
    environment: Environment = trial.built(part)
    prompts = [make_prompt(text) for text in ("7", "12", "42")]
    with part.rule(
        "first(prompt) returns int32 [length], the first question, each time the same",
        "return prompt.tokens, or tokens that depend on the prompt alone",
    ):
        for prompt in prompts if environment.begins == "prompt" else ():
            one, two = environment.first(prompt), environment.first(prompt)
            returned = f"for {prompt.text!r} it returned {one!r}"
            require(isinstance(one, np.ndarray), f"{returned}, which is no array")
            require(one.ndim == 1 and len(one) > 0, f"{returned}, which is no list of tokens")
            require(np.array_equal(one, two), f"{one.tolist()}, then {two.tolist()}")
            require(one.dtype == np.int32, f"{returned}, whose dtype is {one.dtype}")
    if not part.sound:
        return
    played: list[tuple[Prompt, int, int, Outcome, list[object]]] = []
    with part.rule(
        "an episode ends with an Outcome, whatever the policy answers, and if no further turn fits",
        "let play be a coroutine that returns Outcome(...), and let EpisodeLimit pass, or catch "
        "it; rewards has one number per turn, or none; metrics are finite",
    ):
        for seed in range(50):
            prompt, most = prompts[seed % len(prompts)], _MOST_TURNS if seed < 40 else 1
            outcome, session = _played(runner, environment, prompt, seed, most)
            outcome_to(outcome, "", math.inf)
            count = len(outcome.rewards)
            require(count in (0, session.turns), f"{count} rewards for {session.turns} turns")
            played.append((prompt, seed, most, outcome, session.given))
    if environment.deterministic:
        with part.rule(
            "deterministic: the same answers lead to the same episode",
            "keep no state between episodes and use no randomness; or do not set deterministic",
        ):
            for prompt, seed, most, outcome, given in reversed(played):
                again, session = _played(runner, environment, prompt, seed, most)
                require(again == outcome, f"{outcome}, then {again}")
                require(session.given == given, f"it gave {given}, then {session.given}")


def _played(
    runner: asyncio.Runner, environment: Environment, prompt: Prompt, seed: int, most: int
) -> tuple[Outcome, ScriptedSession]:
    session = ScriptedSession(seed, most, begun=environment.begins == "prompt")

    async def play() -> Outcome:
        try:
            return await asyncio.wait_for(environment.play(prompt, session), _PLAY_S)
        except EpisodeLimit:
            return Outcome(ended="cut")
        except TimeoutError:
            require(False, f"an episode did not end within {_PLAY_S:g} s: {session.turns} turns")
            raise

    return runner.run(play()), session
