"""An evaluation beside everything else on the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.dispatch import Answer
from rlax_plugin.controller.evaluation import Evaluator, ProblemSet, _failures
from rlax_plugin.types import GroupRequest, Prompt, Rollout, SamplingParams

PROBLEMS, SAMPLES, ANSWER_S = 20, 4, 0.005


class Source:
    """Takes its time to read an answer."""

    def decode(self, tokens: np.ndarray) -> str:
        return str(tokens[0])

    def answer(self, completion: str) -> str:
        time.sleep(ANSWER_S)
        return completion


class Parts:
    """A dispatcher whose answers come one after the other, and rewards."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()

    async def submit(self, request: GroupRequest, *, exactly: int | None) -> Answer:
        async with self.turn:
            await asyncio.sleep(0.001)
        tokens, nats = np.array([7], np.int32), np.zeros(1, np.float32)
        rollouts = [
            Rollout(request.group_id, i, seed, tokens, nats, nats, np.array([5]), "stop")
            for i, seed in enumerate(request.seeds)
        ]
        return Answer(request, rollouts, ())

    async def score(self, prompt: Prompt, rollouts: list[Rollout]) -> list[Rollout]:
        return rollouts


def test_slow_answers_do_not_hold_up_the_event_loop() -> None:
    async def main() -> float:
        parts: Any = Parts()
        source: Any = Source()
        section = RlaxSection.model_validate(
            {
                "prompt_source": {"name": "numbers"},
                "rewards": [{"name": "even"}],
                "evaluation": {"samples": SAMPLES, "k": [1], "majority_k": [2], "bootstrap": 1},
            }
        )
        prompts = [Prompt(str(i), np.array([1], np.int32), "", "") for i in range(PROBLEMS)]
        problems = ProblemSet("a", "eval/a", source, prompts, SAMPLES, SamplingParams(), parts)
        longest_s, ended = 0.0, asyncio.Event()

        async def tick() -> None:
            nonlocal longest_s
            while not ended.is_set():
                before_s = time.perf_counter()
                await asyncio.sleep(0)
                longest_s = max(longest_s, time.perf_counter() - before_s)

        ticking = asyncio.ensure_future(tick())
        found = await Evaluator(section, parts, [problems]).run(5, pinned=True)
        ended.set()
        await ticking
        assert found.main["majority_at_2"].problems == PROBLEMS
        return longest_s

    assert asyncio.run(main()) < PROBLEMS * SAMPLES * ANSWER_S / 2


def test_the_first_reason_why_rewards_of_a_set_failed_is_kept() -> None:
    good = Rollout(0, 0, 0, np.array([7]), np.zeros(1), np.zeros(1), np.array([5]), "stop")
    bad = dataclasses.replace(good, reward_error="KeyError: 'a'")
    worse = dataclasses.replace(good, reward_error="ValueError: b")
    answers = (None, None)
    sets = {"fine": [([good, good], answers)], "hard": [([good, bad], answers), ([worse], answers)]}
    assert _failures(sets) == {"hard": "KeyError: 'a'"}
