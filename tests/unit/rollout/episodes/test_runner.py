"""The episodes of a group: played side by side, put together and scored."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from part_stubs import SourceStub
from sections import section_with

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import (
    Episode,
    Key,
    Request,
    SamplingParams,
    Score,
    ScoredGroup,
    Trajectory,
    Turn,
    Unscored,
)
from rlax_plugin.ports.environment import EpisodeLimit, Outcome
from rlax_plugin.rollout.episodes.playing import NoLog, TurnLog
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.dispatch import MAX_ATTEMPTS
from rlax_plugin.rollout.fleet.requests import sample_seed
from rlax_plugin.rollout.fleet.tickets import Completed
from rlax_plugin.testing import make_prompt, make_sampled
from rlax_plugin.testing.task import decode


class Worker:
    def __init__(self, trusted: bool = True):
        self.trusted = trusted


W = Worker()


class Source(SourceStub):
    def decode(self, tokens: np.ndarray) -> str:
        return decode(tokens)


class Workers:
    """Answers later turns with two tokens of version 5."""

    vocabulary = 64

    def __init__(self, *workers: Worker):
        self.requests: list[Request] = []
        self._workers = list(workers)

    async def submit(self, request: Request) -> Completed:
        self.requests.append(request)
        worker = self._workers.pop(0) if self._workers else W
        (seed,) = request.seeds
        length = min(2, request.sampling.max_new_tokens)
        return Completed(request, (make_sampled(length, version=5, seed=seed),), (worker,))


class Pool:
    """Plays each episode with a function of its own; pays 0.5 for each, at the last token."""

    def __init__(self, *plays: Any):
        self.plays, self.scored = plays, list[int]()

    async def play(self, prompt: Any, played: Any) -> Outcome | Unscored:
        try:
            return await self.plays[played.index](played)
        except EpisodeLimit:
            return Outcome(ended="cut")

    async def score(
        self, prompt: Any, episodes: Sequence[Episode], step: int
    ) -> list[Score | Unscored]:
        self.scored += [episode.index for episode in episodes]
        return [
            Score(
                0.5,
                (0.5,),
                {"judged": 1.0},
                tuple(np.append(np.zeros(len(s.tokens) - 1), 0.25) for s in e.sampled),
            )
            for e in episodes
        ]


def seed_of(sample: int, trajectory: int, turn: int) -> int:
    return sample_seed(3, "train", 9, sample, trajectory, turn)


def run(
    pool: Pool,
    workers: Workers,
    log: TurnLog | None = None,
    *,
    begins: str = "prompt",
    **request: Any,
) -> Any:
    section = section_with(
        environment={"name": "x"},
        rollouts={"max_prompt_tokens": 4, "max_new_tokens": 6, "group_size": 2},
        episodes={"max_turns": 4, "max_tokens": 12},
    )
    environment = SimpleNamespace(begins=begins)
    runner = EpisodeRunner(section, Source(), environment, workers)  # type: ignore[arg-type]
    prompt, count = make_prompt("7"), len(pool.plays)
    seeds = tuple(seed_of(i, 0, 0) for i in range(count))
    first = Request(
        **{
            "key": Key("train", 9),
            "attempt": 2,
            "context": prompt.tokens,
            "seeds": seeds,
            "sampling": SamplingParams(temperature=0.7, max_new_tokens=6, stop_ids=(1,)),
            "min_version": 3,
        }
        | request
    )
    samples = tuple(make_sampled(3, version=4, seed=seed) for seed in seeds)
    answer = Completed(first, samples, (W,))  # type: ignore[arg-type]
    return asyncio.run(runner.run(prompt, answer, pool, seed_of, log=log))  # type: ignore[arg-type]


async def at_once(played: Any) -> Outcome:
    return Outcome()


async def two_more(played: Any) -> Outcome:
    await played.sample([5])
    await played.sample([5], played.begin([6]))
    return Outcome()


async def the_other_first(played: Any) -> Outcome:
    """Its turns are answered in another order than that of the rows."""
    await played.sample([5], played.begin([6]))
    await played.sample([5])
    return Outcome(rewards=(1.0, 2.0, 4.0), metrics={"tools": 2.0})


async def without_end(played: Any) -> Outcome:
    while True:
        await played.sample([5, 5])


async def fails(played: Any) -> Unscored:
    await played.sample([5])
    return Unscored("it raised")


def test_later_turns_are_asked_for_with_their_own_seed_and_room() -> None:
    workers = Workers()
    found = run(Pool(at_once, two_more), workers)
    one, two = workers.requests
    assert one.key == Key("train", 9, 1, 0, 1) and two.key == Key("train", 9, 1, 1, 0)
    assert one.seeds == (seed_of(1, 0, 1),) and two.seeds == (seed_of(1, 1, 0),)
    assert len({seed_of(1, 0, 0), *one.seeds, *two.seeds}) == 3
    assert one.min_version == 4  # the newest of its trajectory, though the group needs but 3
    assert two.min_version == 3
    assert one.session == two.session == "train/9/1"
    assert one.sampling == SamplingParams(temperature=0.7, max_new_tokens=6, stop_ids=(1,))
    assert [e.index for e in found.episodes] == [0, 1]
    assert [sum(1 for _ in e.sampled) for e in found.episodes] == [1, 3]
    assert found.episodes[0].texts == () and len(found.episodes[1].texts) == 5


async def begins(played: Any) -> Outcome:
    await played.sample([5])
    return Outcome(reward=2.0)


def test_an_environment_that_begins_is_asked_for_every_turn_and_one_without_has_no_score() -> None:
    workers = Workers()
    found = run(Pool(at_once, begins), workers, begins="play")
    (request,) = workers.requests
    assert request.key == Key("train", 9, 1, 0, 0) and request.seeds == (seed_of(1, 0, 0),)
    assert request.context.tolist() == [5] and request.min_version == 3
    without, scored = found.scores
    assert isinstance(without, Unscored) and without.ending is Ending.WITHOUT_TURN
    assert scored.total == 2.5 and scored.at_the_end == 2.25
    assert [len(e.trajectories) for e in found.episodes] == [0, 1]
    assert found.episodes[0].ending is Ending.DONE and not found.episodes[0].truncated


def test_an_evaluation_shows_log_probs_to_its_environment_and_keeps_none() -> None:
    shown: list[Any] = []

    async def plays(played: Any) -> Outcome:
        shown.append(played.answer)
        shown.append(await played.sample([5]))
        played.begin_again()  # its process was lost
        shown.append(await played.sample([5]))
        return Outcome()

    kept = [
        [len(sampled.logprobs) for sampled in run(Pool(plays), Workers(), log).episodes[0].sampled]
        for log in (None, NoLog())
    ]
    assert kept == [[0, 0], [3, 2]]
    assert [len(answer.logprobs) for answer in shown] == [3, 2, 2] * 2


def test_a_turn_is_asked_of_versions_that_can_train() -> None:
    class Newer(NoLog):
        oldest = 7

    workers = Workers()
    run(Pool(at_once, begins), workers, Newer(), begins="play")
    assert [request.min_version for request in workers.requests] == [7]


def test_recorded_turns_are_those_of_their_own_sample() -> None:
    class Recorded(NoLog):
        def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
            turn = Turn(np.array([5], np.int32), make_sampled(tokens=[40], version=4))
            return [(Key("train", group, 1, 0, 1), turn)]

    async def once(played: Any) -> Outcome:
        await played.sample([5])
        return Outcome()

    workers = Workers()
    run(Pool(once, once), workers, Recorded())
    assert [asked.key.sample for asked in workers.requests] == [0]


def test_an_evaluated_version_stays_the_same_for_later_turns() -> None:
    workers = Workers()
    run(Pool(two_more), workers, exactly=4, key=Key("evaluate", 9))
    assert [r.exactly for r in workers.requests] == [4, 4]
    assert workers.requests[0].key.purpose == "evaluate"


def test_what_an_environment_pays_lies_on_the_last_tokens_of_turns() -> None:
    found = run(Pool(at_once, the_other_first), Workers())
    plain, paid = found.scores
    assert plain.total == 0.5 and dict(plain.metrics) == {"judged": 1.0}
    # 0.25 of the reward at each turn's last token, and what the environment pays.
    assert [r.tolist() for r in paid.token_rewards] == [[0, 0, 1.25], [0, 4.25], [0, 2.25]]
    assert paid.total == 0.5 + 7.0 and paid.parts == (0.5,)
    assert paid.at_the_end == pytest.approx(7.5 - 7.75)
    assert dict(paid.metrics) == {"judged": 1.0, "tools": 2.0}


def test_an_episode_that_fails_has_no_score_and_leaves_the_others() -> None:
    pool = Pool(fails, two_more, fails)
    found = run(pool, Workers())
    assert pool.scored == [1]
    assert [isinstance(s, Unscored) for s in found.scores] == [True, False, True]
    assert found.scores[0].reason == "it raised"
    # What was sampled of it is recorded all the same.
    assert [sum(1 for _ in e.sampled) for e in found.episodes] == [2, 3, 2]
    assert found.episodes[0].ended == "cut" and found.episodes[0].truncated


def test_each_episode_of_a_group_has_its_own_ending() -> None:
    async def late(played: Any) -> Unscored:
        return Unscored("it hung", Ending.ENVIRONMENT_LATE)

    found = run(Pool(fails, without_end, late, at_once), Workers())
    group = ScoredGroup(9, 2, make_prompt("7"), found.episodes, found.scores)
    assert list(group.endings) == ["reward_failed", "cut", "environment_late", "done"]
    (last,) = found.episodes[3].sampled
    long = Trajectory((Turn(np.array([5], np.int32), replace(last, finish="length")),))
    judged = replace(found.scores[3], ending=Ending.CRASHED)
    episodes = (*found.episodes[:2], replace(found.episodes[3], trajectories=(long,)))
    scores = (*found.scores[:2], found.scores[3])
    assert list(replace(group, episodes=episodes, scores=scores).endings)[2] == "length"
    scores = (*found.scores[:2], judged)
    assert list(replace(group, episodes=episodes, scores=scores).endings)[2] == "crashed"


def test_a_token_that_no_worker_has_is_the_environments_mistake() -> None:
    said: list[str] = []

    async def mistaken(played: Any) -> Outcome:
        with pytest.raises(ValueError, match="token") as error:
            await played.sample([5, 64])
        said.append(str(error.value))
        return Outcome()

    workers = Workers()
    run(Pool(mistaken), workers)
    assert said == ["token id 64, which must be from 0 to 63"] and workers.requests == []


def test_a_limit_cuts_an_episode_that_is_scored_nevertheless() -> None:
    workers = Workers()
    found = run(Pool(without_end), workers)
    (episode,) = found.episodes
    # 3 sampled; twice 2 given and 2 sampled are 11 of 12 tokens: one is left, two are given.
    assert [len(t.sampled.tokens) for t in episode.trajectories[0].turns] == [3, 2, 2]
    assert [r.sampling.max_new_tokens for r in workers.requests] == [6, 3]
    assert episode.ended == "cut" and found.scores[0].total == 0.5


def test_all_workers_of_an_episode_are_known_and_a_distrusted_one_answers_in_vain() -> None:
    other, lying = Worker(), Worker(trusted=False)
    workers = Workers(lying, other)
    found = run(Pool(two_more), workers)
    # What it has answered is not taken up: the turn is asked for again.
    assert [r.key.turn for r in workers.requests] == [1, 1, 0]
    assert found.workers == (W, other)


def test_an_episode_that_is_played_again_asks_with_other_attempts() -> None:
    """What workers were told to give up of the first time must not end the second."""

    async def twice(played: Any) -> Outcome:
        await played.sample([5])
        played.begin_again()  # as when its process has ended
        await played.sample([6])  # not what was asked then, so that it is sampled anew
        return Outcome()

    workers = Workers()
    run(Pool(twice, twice), workers)
    assert len(workers.requests) == 4 and len({r.key for r in workers.requests}) == 2
    attempts = sorted(r.attempt for r in workers.requests)
    assert attempts[0] >= 1
    # The dispatcher may issue each of them again so many times.
    assert min(np.diff(attempts)) > MAX_ATTEMPTS


def test_a_deterministic_run_needs_an_environment_that_is() -> None:
    def environment(deterministic: bool) -> Any:
        return SimpleNamespace(deterministic=deterministic)

    section = section_with(environment={"name": "calculator"}, deterministic=True)
    assert EpisodeRunner(section, Source(), environment(True), Workers())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rlax\.environment = 'calculator'.*deterministic"):
        EpisodeRunner(section, Source(), environment(False), Workers())  # type: ignore[arg-type]
