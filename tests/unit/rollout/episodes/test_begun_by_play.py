"""Episodes that the policy has not begun when their environment is called."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flow_harness import Harness, settle
from under_way import KEY, Log, Source, playing

from rlax_plugin.base.types import Key, Sampled
from rlax_plugin.ports.environment import EpisodeLimit, Outcome
from rlax_plugin.testing import make_sampled


class Chat(Source):
    """Encodes messages as their number and that of tools."""

    def encode_messages(
        self,
        messages: Sequence[Any],
        after: np.ndarray | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        return [len(messages), len(tools)]


async def ask(key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
    """Answers with the tokens 20, 21, ..., as many as it may, with weights of version 4."""
    ask.asked.append((key, context.tolist(), most))  # type: ignore[attr-defined]
    return make_sampled(tokens=20 + np.arange(most), version=4)


@pytest.fixture(autouse=True)
def asked() -> list[tuple[Key, list[int], int]]:
    ask.asked = []  # type: ignore[attr-defined]
    return ask.asked  # type: ignore[attr-defined]


async def test_the_first_turn_is_one_like_all_others(asked: list[Any]) -> None:
    log = Log()
    episode = playing(ask, log, source=Chat(), first=None)
    assert episode.answer is None and episode.turns_left == 4 and episode.tokens_left == 16
    hello = [{"role": "user", "content": "hello"}] * 3
    answer = await episode.sample(hello, most_tokens=2, tools=[{"type": "function"}])
    await episode.sample([9])
    assert asked == [(KEY, [3, 1], 2), (KEY._replace(turn=1), [3, 1, 20, 21, 9], 6)]
    # 12 tokens may follow what the trajectory began with: 2 + 1 + 6 of them are there.
    assert episode.tokens_left == 3 and episode.turns_left == 2
    assert (answer.tokens.tolist(), answer.version) == ([20, 21], 4)
    assert answer.logprobs.dtype == np.float32 and len(answer.logprobs) == 2
    assert log.places == [(0, 0), (0, 1)]
    made = episode.episode(None, cut=False)
    assert [t.given.tolist() for t in made.trajectories[0].turns] == [[3, 1], [9]]
    assert len(made.texts) == 3  # sampled, given, sampled


async def test_a_further_trajectory_may_be_answered_first_or_alone(asked: list[Any]) -> None:
    episode = playing(ask, first=None)
    other = episode.begin([5])
    await episode.sample([6], other)
    await episode.sample([7])
    assert [key[3:] for key, *_ in asked] == [(1, 0), (0, 0)]
    made = episode.episode("x", cut=False)
    assert [t.turns[0].given.tolist() for t in made.trajectories] == [[7], [5, 6]]
    assert made.order == (1, 0) and episode.of_turns([1.0, 2.0]) == [2.0, 1.0]
    alone = playing(ask, first=None)
    await alone.sample([6], alone.begin([5]))
    assert [len(t.turns) for t in alone.episode("x", cut=False).trajectories] == [1]


async def test_what_begins_a_sequence_is_as_long_as_a_prompt_may_be() -> None:
    episode = playing(ask, first=None)
    with pytest.raises(EpisodeLimit, match="cannot begin with 5 tokens: rlax"):
        await episode.sample([2] * 5)
    with pytest.raises(ValueError, match="nothing is given"):
        await episode.sample([])
    with pytest.raises(ValueError, match="at least one token, not 0"):
        await episode.sample([2], most_tokens=0)
    await episode.sample([2] * 4)
    assert episode.turns_left == 3
    assert not playing(ask, first=None).episode(None, cut=False).trajectories


async def test_recorded_turns_answer_again_also_the_first_one(asked: list[Any]) -> None:
    log = Log()
    before = playing(ask, log, first=None)
    await before.sample([2])
    await before.sample([3])
    again, heard = playing(ask, log, known=log.turns[:], first=None), len(asked)
    await again.sample([2])
    assert len(asked) == heard and not log.void
    again.begin_again()
    await again.sample([2])
    await again.sample([3])
    assert len(asked) == heard and not log.void
    shorter = playing(ask, other_log := Log(), known=log.turns[:1], first=None)
    await shorter.sample([2], most_tokens=1)  # the recorded answer has more
    assert other_log.void == [(0, 0)] and asked.pop() == (KEY, [2], 1)
    other = playing(ask, log, known=log.turns[:2], first=None)
    await other.sample([4])
    assert asked[heard][:2] == (KEY, [4]) and log.void == [(0, 0), (0, 1)]


async def test_a_turn_that_arrives_too_stale_voids_its_group(tmp_path: Any) -> None:
    """It was begun before the batch was made that its version cannot follow."""

    async def one_turn(prompt: Any, played: Any) -> Outcome:
        await played.sample([5])
        return Outcome()

    run = Harness(tmp_path, 1, 1, groups=1, oversample=2.0, play=one_turn, begins="play")
    answers = run.answers
    await run.begin()
    assert not answers.open and sorted(answers.later) == [
        Key("train", group, sample, 0, 0) for group in (0, 1) for sample in (0, 1)
    ]
    for sample in (0, 1):
        answers.generate_turn(Key("train", 0, sample), 0)
    await run.flow.batch(1)
    await run.published(1)
    old = Key("train", 1, 0, 0, 0)
    request, _ = answers.later[old]
    assert request.min_version == 0 and len(request.context) == 1
    answers.generate_turn(old, 0)
    await settle()
    asked = [answers.later[Key("train", 1, sample, 0, 0)][0] for sample in (0, 1)]
    assert [one.min_version for one in asked] == [1, 1]
    for sample in (0, 1):
        answers.generate_turn(Key("train", 1, sample, 0, 0), 1)
    batch, stats = await asyncio.wait_for(run.flow.batch(2), 60)
    assert [(g.id, g.attempt, g.oldest_version) for g in batch.groups] == [(1, 2, 1)]
    assert run.run_state.totals.samples == 5 and stats.requests == {"too_stale": 1}


async def test_a_group_that_is_void_before_it_goes_on_is_generated_once(tmp_path: Any) -> None:
    """A worker is quarantined after its turns were taken up, before the group goes on."""

    async def one_turn(prompt: Any, played: Any) -> Outcome:
        await played.sample([5])
        return Outcome()

    key = Key("train", 0, 0, 0, 0)
    killed = Harness(tmp_path, 1, 1, groups=1, play=one_turn, begins="play")
    await killed.begin()
    killed.answers.generate_turn(key, 0, worker="bad")
    await settle()
    await killed.recorder.flush()
    await killed.supervision.close()
    killed.recorder.close()
    run = Harness(tmp_path, 1, 1, groups=1, play=one_turn, begins="play")
    run.flow.distrust("bad")  # before the run is live again
    await run.begin()
    assert sorted(run.answers.later) == [key, key._replace(sample=1)]
    for sample in (0, 1):
        run.answers.generate_turn(key._replace(sample=sample), 0)
    await settle()
    assert not run.answers.later  # nothing is asked for once more
    batch, _ = await asyncio.wait_for(run.flow.batch(1), 60)
    assert len(batch.groups) == 1 and run.run_state.totals.samples == 3
