"""One episode under way: limits, what is known of it, and what may train of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from under_way import KEY, Log, Source, playing

from rlax_plugin.base.types import Key, Sampled, Turn
from rlax_plugin.ports.environment import Answer, EpisodeLimit
from rlax_plugin.testing import make_sampled
from rlax_plugin.testing.task import decode, encode


class Asked:
    """Answers with as many tokens as it is told, and remembers what it was asked for.

    Attributes:
      asked: key, context, max_new_tokens and min_version of each request.
      hold: while it is set, answers wait for it.
    """

    def __init__(self, *lengths: int, version: int = 4):
        self.lengths, self.version = list(lengths), version
        self.asked: list[tuple[Key, list[int], int, int]] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        self.asked.append((key, context.tolist(), most, oldest))
        number = len(self.asked)
        if self.hold is not None:
            await self.hold.wait()
        length = self.lengths.pop(0) if self.lengths else 2
        tokens = 20 + number + np.arange(min(length, most))
        return make_sampled(tokens=tokens, version=self.version)


def test_a_later_turn_goes_on_behind_what_was_sampled() -> None:
    ask, log = Asked(2, 3), Log()
    episode = playing(ask, log)
    assert episode.answer.text == "234" and episode.answer.finish == "stop"

    async def play() -> Answer:
        await episode.sample("00")
        return await episode.sample([9])

    last = asyncio.run(play())
    before = [*encode("12").tolist(), 4, 5, 6, 2, 2]
    assert [a[0] for a in ask.asked] == [KEY._replace(turn=1), KEY._replace(turn=2)]
    assert ask.asked[0][1] == before and ask.asked[1][1] == [*before, 21, 22, 9]
    assert last.tokens.tolist() == [22, 23, 24]
    assert log.turns[0][0] == KEY._replace(turn=1) and log.places == [(0, 1), (0, 2)]
    made = episode.episode(None, cut=False)
    assert [t.given.tolist() for t in made.trajectories[0].turns] == [[3, 4], [2, 2], [9]]
    assert made.text == last.text == decode(last.tokens)
    # The prompt left out: sampled, given, sampled, given, sampled.
    assert made.texts == ("234", "00", decode(np.array([21, 22])), "7", last.text)
    assert made.ended == "done" and made.index == 2


class Chat(Source):
    """Encodes messages as their number, and what they follow."""

    def encode_messages(self, messages: Sequence[Any], after: np.ndarray | None) -> list[int]:
        return [len(messages), *([] if after is None else after.tolist())]


async def test_messages_are_encoded_behind_the_tokens_that_they_follow() -> None:
    ask, told = Asked(2, 2), [{"role": "tool", "content": "1"}]
    with pytest.raises(ValueError, match="the prompt source has no encode_messages"):
        await playing(ask).sample(told)
    episode = playing(ask, source=Chat())
    await episode.sample(told)
    other = episode.begin(told * 2)
    with pytest.raises(ValueError, match="messages cannot follow a context"):
        await episode.sample(told, other)
    await episode.sample([], other)
    assert ask.asked[0][1][-4:] == [1, 4, 5, 6]  # behind 4, 5, 6, the first answer
    assert ask.asked[1][1] == [2]


def test_room_shrinks_with_each_turn_and_ends_the_episode() -> None:
    ask = Asked(6, 6)
    episode = playing(ask)
    assert (episode.turns_left, episode.tokens_left) == (3, 9)

    async def play() -> None:
        await episode.sample([5, 5])
        assert ask.asked[0][2] == 6  # 12 - 3 - 2 = 7, and one answer has 6
        assert (episode.turns_left, episode.tokens_left) == (2, 1)
        with pytest.raises(EpisodeLimit, match="room is left for 2 turns and 0 tokens"):
            await episode.sample([5])

    asyncio.run(play())
    short = playing(ask := Asked(1, 6))

    async def shorter() -> None:
        await short.sample([5] * 4)
        await short.sample([])
        assert [most for _, _, most, _ in ask.asked] == [5, 4]

    asyncio.run(shorter())


async def test_a_further_trajectory_has_its_own_context_and_room() -> None:
    ask = Asked(2, 2)
    episode = playing(ask)

    await episode.sample([5] * 3)
    other = episode.begin("3456")
    with pytest.raises(ValueError, match="trajectory 2: there are 2"):
        await episode.sample([5], 2)
    await episode.sample([8], other)
    assert ask.asked[1][0] == KEY._replace(trajectory=1, turn=0)
    assert ask.asked[1][1] == [5, 6, 7, 8, 8] and ask.asked[1][3] == 0
    assert episode.tokens_left == 12 - 1 - 2
    made = episode.episode("said", cut=True)
    given = [[t.given.tolist() for t in one.turns] for one in made.trajectories]
    assert given == [[[3, 4], [5, 5, 5]], [[5, 6, 7, 8, 8]]]
    assert made.text == "said" and made.ended == "cut" and len(made.texts) == 5


def test_what_was_begun_and_never_sampled_leaves_no_row() -> None:
    episode = playing(Asked())
    for _ in range(3):
        episode.begin("1")
    with pytest.raises(EpisodeLimit):  # each must still have its turn
        episode.begin("1")
    with pytest.raises(EpisodeLimit, match="cannot begin with 5 tokens"):
        playing(Asked()).begin("12345")
    assert len(episode.episode(None, cut=False).trajectories) == 1


def test_trajectories_are_limited_so_that_a_batch_holds_a_group() -> None:
    """With three groups of two episodes a batch has six rows: three for each episode of a group."""
    rows = {"groups_per_step": 3, "group_size": 2}
    for limits, most in (({}, 3), ({"max_trajectories": 2}, 2)):
        episode = playing(Asked(), rollouts=rows, **limits)
        begun = [episode.begin("1") for _ in range(most - 1)]
        assert begun == list(range(1, most))
        with pytest.raises(EpisodeLimit, match=f"{most} trajectories: rlax.episodes.max_traj"):
            episode.begin("1")


async def test_what_is_no_token_is_the_environments_mistake() -> None:
    episode = playing(Asked())

    for wrong, what in (([-1], "token"), ([2**31], "token"), ("é", "substring|not in")):
        with pytest.raises(ValueError, match=what):
            await episode.sample(wrong)
    with pytest.raises(ValueError, match="nothing is given"):
        await episode.sample([], episode.begin([]))


async def test_one_trajectory_has_one_turn_at_a_time() -> None:
    """Two at once would each be sampled without the other, and train behind it."""
    ask = Asked(1, 1, 1)

    episode, ask.hold = playing(ask), asyncio.Event()
    other = episode.begin("3")
    first = asyncio.ensure_future(episode.sample([5]))
    second = asyncio.ensure_future(episode.sample([6], other))
    await asyncio.sleep(0)
    assert episode.turns_left == 1
    with pytest.raises(ValueError, match="its last answer is not there yet"):
        await episode.sample([7])
    ask.hold.set()
    await asyncio.gather(first, second)
    await episode.sample([7])
    assert ask.asked[-1][1] == [3, 4, 4, 5, 6, 5, 21, 7]
    with pytest.raises(EpisodeLimit):
        await episode.sample([7])


def known(*turns: tuple[int, int, list[int]]) -> list[tuple[Key, Turn]]:
    """Trajectory, turn, and what was given; each sampled its own token."""
    return [
        (
            KEY._replace(trajectory=trajectory, turn=turn),
            Turn(np.array(given, np.int32), make_sampled(tokens=[40 + number], version=4)),
        )
        for number, (trajectory, turn, given) in enumerate(turns)
    ]


def test_known_turns_are_not_sampled_again_while_the_same_is_given() -> None:
    ask, log = Asked(1), Log()
    recorded = known((0, 1, [5]), (1, 0, [3, 8]), (0, 2, [6]))
    episode = playing(ask, log, recorded)

    async def play() -> list[list[int]]:
        one = await episode.sample([5])
        two = await episode.sample([8], episode.begin([3]))
        return [a.tokens.tolist() for a in (one, two, await episode.sample([6]))]

    assert asyncio.run(play()) == [[40], [41], [42]]
    assert ask.asked == [] and log.turns == [] and log.void == []
    made = episode.episode(None, cut=False)
    turns = [turn for one in made.trajectories for turn in one.turns]
    assert turns[1] is recorded[0][1] and turns[2] is recorded[2][1] and turns[3] is recorded[1][1]


async def test_from_the_first_difference_on_all_that_is_known_is_void() -> None:
    ask, log = Asked(1, 1), Log()
    episode = playing(ask, log, known((0, 1, [5]), (0, 2, [6]), (1, 0, [3]), (0, 3, [7])))

    assert (await episode.sample([5])).tokens.tolist() == [40]
    assert (await episode.sample([9])).tokens.tolist() == [21]
    assert (await episode.sample([7])).tokens.tolist() == [22]  # the same, behind another turn
    assert log.void == [(0, 2), (1, 0), (0, 3)]  # each once
    assert log.places == [(0, 2), (0, 3)]
    assert ask.asked[0][1] == [3, 4, 4, 5, 6, 5, 40, 9]


def test_what_an_environment_does_not_come_to_again_is_void() -> None:
    log = Log()
    episode = playing(Asked(), log, known((0, 1, [5]), (0, 2, [6])))
    asyncio.run(episode.sample([5]))
    assert log.void == []
    assert len(episode.episode(None, cut=False).trajectories[0].turns) == 2
    assert log.void == [(0, 2)]


async def test_an_episode_whose_process_was_lost_repeats_its_turns() -> None:
    ask, log = Asked(2, 2), Log()

    episode = playing(ask, log)
    await episode.sample([5])
    ask.hold = asyncio.Event()
    lost = asyncio.ensure_future(episode.sample([6]))
    await asyncio.sleep(0)
    lost.cancel()
    episode.begin_again()
    assert episode.answer.tokens.tolist() == [4, 5, 6] and episode.turns_left == 3
    assert (await episode.sample([5])).tokens.tolist() == [21, 22]
    again = asyncio.ensure_future(episode.sample([6]))
    await asyncio.sleep(0)  # in which the lost one ends, too
    with pytest.raises(ValueError, match="not there yet"):
        await episode.sample([6])
    ask.hold.set()
    assert (await again).tokens.tolist() == [23, 24]
    assert len(episode.episode(None, cut=False).trajectories[0].turns) == 3
    assert [key.turn for key, *_ in ask.asked] == [1, 2, 2]
    assert log.places == [(0, 1), (0, 2)] and log.void == []


async def test_rewards_of_turns_follow_the_order_in_which_they_were_answered() -> None:
    episode = playing(Asked())

    other = episode.begin("3")
    await episode.sample([5], other)
    await episode.sample([5])
    await episode.sample([5], other)
    # Rows: (0, 0), (0, 1), (1, 0), (1, 1).
    assert episode.of_turns([1.0, 2.0, 3.0, 4.0]) == [1.0, 3.0, 2.0, 4.0]


async def test_turns_are_counted_over_all_trajectories() -> None:
    episode = playing(Asked(1, 1), max_turns=3)

    other = episode.begin("34")
    assert other == 1 and episode.turns_left == 2
    await episode.sample([5], other)
    await episode.sample([5])
    assert episode.turns_left == 0
    with pytest.raises(EpisodeLimit, match="0 turns"):
        await episode.sample([5])
