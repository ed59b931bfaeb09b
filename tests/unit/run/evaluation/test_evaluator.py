"""An evaluation beside everything else on the event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import rlax_environments
from part_stubs import SourceStub

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
from rlax_plugin.run.evaluation.measures import Outcomes, measures
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

    async def submit(self, request: Request) -> Completed:
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


def evaluator(section: RlaxSection, source: Any, parts: Any, problems: ProblemSet) -> Evaluator:
    runner = EpisodeRunner(section, source, rlax_environments.SingleTurn(), parts)
    return Evaluator(section, parts, runner, [problems])


def test_slow_answers_do_not_hold_up_the_event_loop() -> None:
    async def main() -> int:
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
        most, ended = 0, asyncio.Event()

        async def tick() -> None:
            nonlocal most
            while not ended.is_set():
                before = source.read
                await asyncio.sleep(0)
                most = max(most, source.read - before)

        ticking = asyncio.ensure_future(tick())
        found = await evaluator(section, source, parts, problems).run(5, pinned=True)
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
    assert failures_of(sets) == {"hard": "KeyError: 'a'"}


class LongSource(SourceStub):
    """Texts as long as their tokens, which answer nothing, or with one of three last characters."""

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(chr(97 + token) for token in tokens)

    def answer(self, completion: str) -> str | None:
        return None if completion[-1] == "d" else completion[-1] * len(completion)


class Long:
    """A dispatcher of long completions, one group after the other, and rewards that come late.

    Attributes:
      given: a weak reference to every array of log-probs, versions or a side channel.
      most: of these, the bytes that were alive at once.
      tokens: a weak reference to every array of tokens.
      unscored: groups that were given and are not scored yet.
    """

    def __init__(self, length: int) -> None:
        self.length, self.turn = length, asyncio.Lock()
        self.given: list[weakref.ref[np.ndarray]] = []
        self.tokens: list[weakref.ref[np.ndarray]] = []
        self.most = self.unscored = 0

    def _array(self, values: np.ndarray) -> np.ndarray:
        self.given.append(weakref.ref(values))
        return values

    async def submit(self, request: Request) -> Completed:
        async with self.turn:
            await asyncio.sleep(0)
            rng = np.random.default_rng(1 + request.key.group)
            samples = []
            for seed in request.seeds:
                n = self.length - int(rng.integers(3))
                tokens = rng.integers(4, size=n).astype(np.int32)
                self.tokens.append(weakref.ref(tokens))
                versions = self._array(np.full(n, 5, np.int32))
                nats, truncated = (self._array(np.zeros(n, np.float32)) for _ in range(2))
                finish = "length" if n == self.length else "stop"
                side = {TRUNCATED_LOGPROBS: truncated}
                samples.append(Sampled(seed, tokens, nats, versions, finish, side=side))
            alive = (array() for array in self.given)
            self.most = max(self.most, sum(a.nbytes for a in alive if a is not None))
            # Until they are scored, completions have their tokens, which are less than their texts.
            kept = sum(array() is not None for array in self.tokens)
            self.unscored += 1
            assert kept <= len(request.seeds) * (self.unscored + 1)
            return Completed(request, tuple(samples), ())

    def _scored(self, turns: int = 8) -> None:
        """Counts a group as scored once the tasks that wait for its scores have run.

        On a busy machine many groups are scored in the same turn of the event loop, so a while
        later; what kept tokens for good would be far above the limit nevertheless.
        """
        if turns:
            asyncio.get_running_loop().call_soon(self._scored, turns - 1)
        else:
            self.unscored -= 1

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.05, self._scored)
        scores: list[Score | Unscored] = [Score(float(e.text[-1] in "ac")) for e in episodes]
        if prompt.id == "3":
            scores[0] = Unscored("KeyError: 3")
        return scores


def test_an_evaluation_keeps_numbers_and_no_tokens() -> None:
    problems, samples, length = 64, 4, 4096
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "numbers"},
            "rewards": [{"name": "even"}],
            "evaluation": {"samples": samples, "k": [1, 2], "majority_k": [3], "bootstrap": 20},
        }
    )
    parts: Any = Long(length)
    source: Any = LongSource()
    prompts = [Prompt(str(i), np.array([1], np.int32), "", "") for i in range(problems)]
    one = ProblemSet("a", "eval/a", source, prompts, samples, SamplingParams(), parts)
    found = asyncio.run(evaluator(section, source, parts, one).run(5))

    # A group is there while the next one is made, and never a third one.
    assert parts.most <= 2 * samples * length * 12 < sum(1 for _ in parts.given) * length * 4 / 20
    assert not any(array() is not None for array in parts.tokens)
    # The same as of all texts at once.
    rewards, lengths, answers = [], [], []
    for number in range(problems):
        rng = np.random.default_rng(1 + number)
        for i in range(samples):
            n = length - int(rng.integers(3))
            text = source.decode(rng.integers(4, size=n).astype(np.int32))
            answers.append(source.answer(text))
            rewards.append(np.nan if (number, i) == (3, 0) else float(text[-1] in "ac"))
            lengths.append(n)
    lengths_bn = np.array(lengths).reshape(problems, samples)
    wanted = measures(
        Outcomes(
            np.array(rewards).reshape(problems, samples),
            lengths_bn,
            lengths_bn == length,
            [answers[i : i + samples] for i in range(0, len(answers), samples)],
        ),
        pass_threshold=0.5,
        k=(1, 2),
        majority_k=(3,),
        resamples=20,
        seed=0,
    )
    assert found.main == wanted
    assert 0 < wanted["majority_at_3"].value < 1 and wanted["reward_errors"].value > 0
    assert found.failures == {"a": "KeyError: 3"}


class LaterTurns(Long):
    """Later turns are answered as the first ones are; an episode has three.

    Attributes:
      kept: before each later turn and each score, bytes of an episode's earlier log-probs, versions
        and side channels that were alive.
    """

    vocabulary = 8

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.kept: list[int] = []

    async def submit(self, request: Request) -> Completed:
        samples = tuple(
            Sampled(
                seed,
                np.ones(self.length, np.int32),
                self._array(np.zeros(self.length, np.float32)),
                self._array(np.full(self.length, 5 + request.key.turn, np.int32)),
                "stop",
                side={TRUNCATED_LOGPROBS: self._array(np.zeros(self.length, np.float32))},
            )
            for seed in request.seeds
        )
        assert request.min_version == 5 + max(0, request.key.turn - 1)
        return Completed(request, samples, ())

    def _count(self) -> None:
        alive = (array() for array in self.given)
        self.kept.append(sum(a.nbytes for a in alive if a is not None))

    async def play(self, prompt: Prompt, played: Any) -> Outcome:
        for _ in range(2):
            self._count()
            await played.sample([1])
        return Outcome()

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        self._count()
        return [Score(float(len(list(e.sampled)) == 3)) for e in episodes]


def test_an_evaluation_of_several_turns_keeps_no_log_probs() -> None:
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "numbers"},
            "environment": {"name": "x"},
            "rewards": [{"name": "even"}],
            "rollouts": {"max_new_tokens": 64},
            "episodes": {"max_turns": 3, "max_tokens": 200},
            "evaluation": {"samples": 2, "k": [1], "bootstrap": 1},
        }
    )
    parts: Any = LaterTurns(64)
    source: Any = LongSource()
    prompts = [Prompt(str(i), np.array([1], np.int32), "", "") for i in range(3)]
    one = ProblemSet("a", "eval/a", source, prompts, 2, SamplingParams(), parts)
    found = asyncio.run(evaluator(section, source, parts, one).run(5))
    assert found.main["pass_at_1"].value == 1
    assert len(parts.given) == 3 * 2 * 3 * 3 and parts.kept == [0] * (3 * 2 * 2 + 3)
