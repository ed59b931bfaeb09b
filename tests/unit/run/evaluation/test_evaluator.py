"""An evaluation beside everything else on the event loop."""

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import rlax_environments
from part_stubs import SourceStub
from sections import section_with
from waiting import eventually

from rlax_plugin.base.types import (
    Episode,
    Key,
    Prompt,
    Request,
    Sampled,
    SamplingParams,
    Score,
    Unscored,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.environment import Outcome
from rlax_plugin.rollout.batching.jobs import TRUNCATED_LOGPROBS
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.tickets import Completed
from rlax_plugin.run.evaluation.evaluator import Evaluator, failures_of
from rlax_plugin.run.evaluation.problems import Answered, ProblemSet
from rlax_plugin.testing import make_episode

PROBLEMS, SAMPLES = 20, 4


class Source(SourceStub):
    """Counts the answers that it has read."""

    read = 0

    def decode(self, tokens: np.ndarray) -> str:
        return str(tokens[0])

    def answer(self, completion: str) -> str:
        self.read += 1
        return completion


class Parts:
    """A dispatcher whose answers come one after the other, and rewards."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.asked: list[Request] = []

    async def submit(self, request: Request, expected_tokens: float = 0.0) -> Completed:
        async with self.turn:
            await asyncio.sleep(0.001)
        self.asked.append(request)
        tokens, nats = np.array([7], np.int32), np.zeros(1, np.float32)
        samples = tuple(
            Sampled(seed, tokens, nats, np.array([5]), "stop") for seed in request.seeds
        )
        return Completed(request, samples, ())

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score]:
        return [Score(0.0, (0.0,)) for _ in episodes]


def evaluator(
    section: RlaxSection, source: Any, parts: Any, prompts: list[Prompt], samples: int
) -> Evaluator:
    runner = EpisodeRunner(section, source, rlax_environments.SingleTurn(), parts)
    sampling = SamplingParams()
    problems = ProblemSet("a", "eval/a", source, prompts, samples, sampling, parts, runner)
    return Evaluator(section, parts, [problems])


def test_slow_answers_do_not_hold_up_the_event_loop() -> None:
    async def main() -> int:
        parts: Any = Parts()
        source: Any = Source()
        section = section_with(
            evaluation={"samples": SAMPLES, "k": [1], "majority_k": [2], "bootstrap": 1}
        )
        prompts = [Prompt(str(i), np.array([1], np.int32), "", "") for i in range(PROBLEMS)]
        most, ended = 0, asyncio.Event()

        async def tick() -> None:
            nonlocal most
            while not ended.is_set():
                before = source.read
                await asyncio.sleep(0)
                most = max(most, source.read - before)

        ticking = asyncio.ensure_future(tick())
        found = await evaluator(section, source, parts, prompts, SAMPLES).run(5, pinned=True)
        ended.set()
        await ticking
        assert found.main["majority_at_2"].problems == PROBLEMS
        assert source.read == PROBLEMS * SAMPLES
        assert [r.key for r in parts.asked] == [Key("evaluate", i) for i in range(PROBLEMS)]
        assert {(r.min_version, r.exactly) for r in parts.asked} == {(5, 5)}
        return most

    assert SAMPLES <= asyncio.run(main()) <= 2 * SAMPLES  # in one turn of the loop


def test_the_first_reason_why_rewards_of_a_set_failed_is_kept() -> None:
    good, bad, worse = Score(1.0), Unscored("KeyError: 'a'"), Unscored("ValueError: b")

    def answered(*scores: Score | Unscored) -> Answered:
        return Answered.of([make_episode() for _ in scores], scores, [None] * len(scores))

    sets = {"fine": [answered(good, good)], "hard": [answered(good, bad), answered(worse)]}
    assert failures_of(sets) == {"hard": "reward_failed: KeyError: 'a'"}


class Watched(Parts):
    """Plays episodes of three turns, and sees what an evaluation still holds of them.

    Attributes:
      arrays: a weak reference to every array of versions or a side channel.
      tokens: of every array of tokens or log-probs, its group and a weak reference.
      kept: before each later turn and each score, how many of ``arrays`` were alive.
    """

    vocabulary = 8

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[weakref.ref[np.ndarray]] = []
        self.tokens: list[tuple[int, weakref.ref[np.ndarray]]] = []
        self.kept: list[int] = []
        self.scored: set[int] = set()

    def _array(self, values: np.ndarray) -> np.ndarray:
        self.arrays.append(weakref.ref(values))
        return values

    async def submit(self, request: Request, expected_tokens: float = 0.0) -> Completed:
        assert request.min_version == 5 + max(0, request.key.turn - 1)
        samples = []
        for seed in request.seeds:
            tokens, nats = np.ones(64, np.int32), np.zeros(64, np.float32)
            self.tokens += [(request.key.group, weakref.ref(one)) for one in (tokens, nats)]
            truncated = self._array(np.zeros(64, np.float32))
            versions = self._array(np.full(64, 5 + request.key.turn, np.int32))
            side = {TRUNCATED_LOGPROBS: truncated}
            samples.append(Sampled(seed, tokens, nats, versions, "stop", side=side))
        return Completed(request, tuple(samples), ())

    def _count(self) -> None:
        self.kept.append(sum(array() is not None for array in self.arrays))

    async def play(self, prompt: Prompt, played: Any) -> Outcome:
        for _ in range(2):
            self._count()
            await played.sample([1])
        return Outcome()

    def _have_let_go(self) -> bool:
        return not any(
            tokens() is not None for group, tokens in self.tokens if group in self.scored
        )

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        self._count()
        async with self.turn:
            await eventually(self._have_let_go, "the end of the tokens that are scored")
            self.scored.add(int(prompt.id))
        scores: list[Score | Unscored] = [Score(float(len(list(e.sampled)) == 3)) for e in episodes]
        return [Unscored("KeyError: 2"), *scores[1:]] if prompt.id == "2" else scores


def test_an_evaluation_keeps_numbers_and_neither_tokens_nor_log_probs() -> None:
    section = section_with(
        environment={"name": "x"},
        rollouts={"max_new_tokens": 64},
        episodes={"max_turns": 3, "max_tokens": 200},
        evaluation={"samples": 2, "k": [1], "bootstrap": 1},
    )
    parts: Any = Watched()
    source: Any = Source()
    prompts = [Prompt(str(i), np.array([1], np.int32), "", "") for i in range(3)]
    found = asyncio.run(evaluator(section, source, parts, prompts, 2).run(5))
    assert found.main["pass_at_1"].value == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert found.main["reward_errors"].value == pytest.approx(1 / 6)
    assert found.failures == {"a": "reward_failed: KeyError: 2"}
    # Of each problem 2 samples, 3 turns and 2 arrays; looked at before 2 later turns and a score.
    assert len(parts.arrays) == 3 * 2 * 3 * 2 and parts.kept == [0] * (3 * 2 * 2 + 3)
    assert parts._have_let_go()
