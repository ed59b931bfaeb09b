"""Random plays: advantages, masks and truncation beside a reference that knows no rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from part_stubs import SourceStub
from rlax_objectives.advantages import BatchNormalised, Gae
from sections import section_with

from rlax_plugin.base.types import (
    Episode,
    Key,
    Request,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
    TrainBatch,
    Turn,
    Unscored,
)
from rlax_plugin.ports.environment import Answer, EpisodeLimit, Outcome
from rlax_plugin.rollout.episodes.playing import NoLog
from rlax_plugin.rollout.episodes.runner import EpisodeRunner, ScoredEpisodes
from rlax_plugin.rollout.fleet.requests import sample_seed
from rlax_plugin.rollout.fleet.tickets import Completed
from rlax_plugin.testing import make_prompt, make_sampled
from rlax_plugin.training.objective.advantages import of_batch, of_groups
from rlax_plugin.training.objective.batches import build_arrays

pytestmark = pytest.mark.property

GAMMA, LAM = 0.9, 0.8
VOCABULARY = 2**30  # so that a token stands for itself: no two are the same
GROUPS, SAMPLES, TURNS, TRAJECTORIES = 2, 2, 7, 3
SECTION = section_with(
    environment={"name": "x"},
    rollouts={
        **{"groups_per_step": GROUPS, "group_size": SAMPLES},
        **{"max_prompt_tokens": 4, "max_new_tokens": 4},
    },
    episodes={"max_turns": TURNS, "max_tokens": 14, "max_trajectories": TRAJECTORIES},
    batches={"rows": GROUPS * SAMPLES * TRAJECTORIES},
)
PROMPT = make_prompt("7")
LENGTH = 18


class Plan(NamedTuple):
    """What an environment does with one episode.

    Attributes:
      moves: "begin" a trajectory, go on with one of those begun, or with two of them at once.
      paid: eighths, for each turn as they are answered.
      at_the_end: eighths; None: its scoring fails.
      crashes_after: moves, after which the environment's process ends and plays once more.
    """

    moves: tuple[Any, ...]
    paid: tuple[int, ...]
    at_the_end: int | None
    crashes_after: int


one_plan = st.builds(
    Plan,
    st.lists(
        st.one_of(
            st.just("begin"), st.integers(0, 5), st.tuples(st.integers(0, 5), st.integers(0, 5))
        ),
        max_size=8,
    ).map(tuple),
    st.lists(st.integers(-8, 8), min_size=TURNS, max_size=TURNS).map(tuple),
    st.one_of(st.none(), *[st.integers(-8, 8)] * 3),
    st.integers(0, 8),
)
plans = st.lists(one_plan, min_size=GROUPS * SAMPLES, max_size=GROUPS * SAMPLES)


class Workers:
    """Answers with tokens that follow from the seed alone; odd seeds take longer."""

    vocabulary = VOCABULARY

    async def submit(self, request: Request) -> Completed:
        (seed,) = request.seeds
        for _ in range(seed % 3):
            await asyncio.sleep(0)
        return Completed(request, (answer_of(seed, request.sampling.max_new_tokens),), ())


def answer_of(seed: int, most: int) -> Sampled:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1000, VOCABULARY, min(most, int(rng.integers(1, 5))))
    finish = "length" if rng.random() < 0.4 else "stop"
    return make_sampled(tokens=tokens, seed=seed, finish=finish, version=0)


class Log(NoLog):
    """Remembers turns for a process that takes the run over."""

    def __init__(self, known: Sequence[tuple[Key, Turn]] = ()) -> None:
        self.known, self.turns = known, list[tuple[Key, Turn]]()

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return [one for one in self.known if one[0].group == group]

    def sampled(self, key: Key, turn: Turn) -> None:
        self.turns.append((key, turn))


@dataclass
class Played:
    """An episode as its environment saw it: answers in the order in which they came."""

    answers: list[Answer] = field(default_factory=list)
    paid: tuple[float, ...] = ()
    at_the_end: float | None = None
    cut: bool = False


class Pool:
    """Plays the episodes of one group as their plans say, and scores them."""

    def __init__(self, plans: Sequence[Plan]):
        self._plans, self.played = plans, [Played() for _ in plans]

    async def play(self, prompt: Any, session: Any) -> Outcome:
        plan = self._plans[session.index]
        if plan.crashes_after < len(plan.moves):
            await self._moves(session, plan.moves[: plan.crashes_after])
            session.begin_again()
        played = self.played[session.index] = await self._moves(session, plan.moves)
        played.paid = tuple(n / 8 for n in plan.paid[: len(played.answers)])
        if plan.at_the_end is not None:
            played.at_the_end = plan.at_the_end / 8
        return Outcome(rewards=played.paid, ended="cut" if played.cut else "done")

    async def _moves(self, session: Any, moves: Sequence[Any]) -> Played:
        played, begun = Played([session.answer]), 1

        async def go_on(trajectory: int) -> None:
            played.answers.append(await session.sample([5, 6], trajectory))

        try:
            for move in moves:
                if move == "begin":
                    session.begin([8, 9])
                    begun += 1
                elif isinstance(move, int):
                    await go_on(move % begun)
                else:
                    both = [go_on(one) for one in sorted({move[0] % begun, move[1] % begun})]
                    found = await asyncio.gather(*both, return_exceptions=True)
                    for error in (one for one in found if one is not None):
                        raise error
        except EpisodeLimit:
            played.cut = True
        return played

    async def score(
        self, prompt: Any, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        ends = [self.played[episode.index].at_the_end for episode in episodes]
        return [Unscored("it raised") if end is None else Score(end, (end,)) for end in ends]


def play(plans: Sequence[Plan], number: int, log: Log) -> tuple[ScoredGroup, list[Played]]:
    def seed_of(sample: int, trajectory: int, turn: int) -> int:
        return sample_seed(3, "train", number, sample, trajectory, turn)

    seeds = tuple(seed_of(index, 0, 0) for index in range(SAMPLES))
    sampling = SamplingParams(max_new_tokens=4, stop_ids=(1,))
    first = Request(Key("train", number), 1, PROMPT.tokens, seeds, sampling)
    completed = Completed(first, tuple(answer_of(seed, 4) for seed in seeds), ())
    runner = EpisodeRunner(SECTION, Source(), None, Workers())  # type: ignore[arg-type]
    pool = Pool(plans)
    found: ScoredEpisodes = asyncio.run(
        runner.run(PROMPT, completed, pool, seed_of, log=log)  # type: ignore[arg-type]
    )
    return ScoredGroup(number, 1, PROMPT, found.episodes, found.scores), pool.played


class Source(SourceStub):
    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(map(str, tokens))


def value_of(token: int) -> float:
    return token % 17 / 8


def reference(groups: Sequence[Sequence[Played]]) -> tuple[dict[int, float], dict[int, float]]:
    """Token -> its return less the mean of its group; token -> its advantage by GAE."""
    centred, estimated = {}, {}
    for group in groups:
        scored = [one for one in group if one.at_the_end is not None]
        totals = [one.at_the_end + sum(one.paid) for one in scored]
        same = len(set(totals)) <= 1  # a mean of equal numbers may differ from them in its last bit
        mean = totals[0] if same and totals else sum(totals) / max(1, len(totals))
        for one in scored:
            tokens = [token for answer in one.answers for token in answer.tokens.tolist()]
            paid = dict.fromkeys(tokens, 0.0)
            for answer, amount in zip(one.answers, one.paid, strict=True):
                paid[int(answer.tokens[-1])] = amount
            to_go = advantage = following = 0.0
            for token in reversed(tokens):
                to_go += paid[token]
                centred[token] = one.at_the_end + to_go - mean
                end = one.at_the_end if token == tokens[-1] else 0.0
                delta = paid[token] + end + GAMMA * following - value_of(token)
                estimated[token] = advantage = delta + GAMMA * LAM * advantage
                following = value_of(token)
    return centred, estimated


def found_in(arrays: dict[str, np.ndarray], x_bt: np.ndarray) -> dict[int, float]:
    trained_bt = arrays["rl_episode"] > 0
    return dict(zip(arrays["targets"][trained_bt].tolist(), x_bt[trained_bt].tolist(), strict=True))


@settings(max_examples=examples(30))
@given(plans, st.integers(0, 12), st.integers(1, 3))
def test_nothing_depends_on_rows_or_on_kills(plans, killed_after, per_row):
    log, known = Log(), list[tuple[Key, Turn]]()
    halves = [plans[:SAMPLES], plans[SAMPLES:]]
    for number, half in enumerate(halves):
        play(half, number, log)
    known = log.turns[:killed_after]  # of an earlier process, which was killed
    made = [play(half, number, Log(known)) for number, half in enumerate(halves)]
    groups, played = [group for group, _ in made], [one for _, one in made]

    for group, episodes in zip(groups, played, strict=True):
        for episode, one in zip(group.episodes, episodes, strict=True):
            assert episode.truncated == (one.cut or one.answers[-1].finish == "length")
            assert episode.text == one.answers[-1].text

    centred, estimated = reference(played)
    slot = BatchNormalised(whiten_over="none", baseline="group_mean")
    batch = TrainBatch(1, tuple(groups), of_groups(slot, groups))
    arrays = build_arrays(
        *(batch,),
        **{"rows": SECTION.batch_rows, "length": LENGTH, "sequences_per_row": per_row},
        mask_truncated=True,
    )
    assert found_in(arrays, arrays["rl_advantages"]) == pytest.approx(centred, abs=1e-6)
    again_bt = of_batch(slot, arrays, arrays.get("rl_token_rewards"))
    assert found_in(arrays, again_bt) == pytest.approx(centred, abs=1e-12)
    values_bt = np.vectorize(value_of, otypes=[float])(arrays["targets"])
    slot = Gae(whiten_over="none", gamma=GAMMA, lam=LAM)
    found_bt = of_batch(slot, arrays, arrays.get("rl_token_rewards"), values_bt)
    assert found_in(arrays, found_bt) == pytest.approx(estimated, abs=1e-12)
    trains = {
        token: float(not (one.cut or one.answers[-1].finish == "length"))
        for one in (one for group in played for one in group if one.at_the_end is not None)
        for answer in one.answers
        for token in answer.tokens.tolist()
    }
    assert found_in(arrays, arrays["rl_mask"]) == trains
