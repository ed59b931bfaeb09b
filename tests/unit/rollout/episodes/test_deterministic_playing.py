"""With ``rlax.deterministic`` answers of one episode come in the order of its questions."""

import asyncio

import numpy as np
from under_way import Log, playing
from waiting import turns

from rlax_plugin.base.types import Key, Sampled
from rlax_plugin.ports.environment import Answer
from rlax_plugin.testing import make_sampled


class Held:
    """Answers with one token, each question when its event is set."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Event] = []

    async def __call__(self, key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        number = len(self.answers)
        self.answers.append(asyncio.Event())
        await self.answers[number].wait()
        return make_sampled(tokens=[20 + number], version=4)


async def test_answers_of_a_deterministic_run_come_in_the_order_of_questions() -> None:
    """Which of two is sampled first depends on workers; what rewards reach must not."""
    ask, log = Held(), Log()

    episode = playing(ask, log, deterministic=True)

    def both() -> list[asyncio.Future[Answer]]:
        other = episode.begin("3")
        return [asyncio.ensure_future(episode.sample([5], t)) for t in (0, other)]

    lost = both()
    await turns()
    ask.answers[1].set()
    await turns()
    assert log.places == [(1, 0)] and not any(one.done() for one in lost)
    for one in lost:
        one.cancel()
    episode.begin_again()  # what is recorded is not sampled again
    again = both()
    await turns()
    assert len(ask.answers) == 3 and episode.turns_left == 1
    assert not any(one.done() for one in again)
    ask.answers[2].set()
    assert [(await one).tokens.tolist() for one in again] == [[22], [21]]
    assert episode.episode(None, cut=False).order == ()
    assert log.places == [(1, 0), (0, 1)] and log.void == []


async def test_an_answer_that_waits_when_a_deterministic_episode_ends_is_void() -> None:
    ask, log = Held(), Log()

    episode = playing(ask, log, deterministic=True)
    other = episode.begin("3")
    asked = [asyncio.ensure_future(episode.sample([5], t)) for t in (0, other)]
    await turns()
    ask.answers[1].set()
    await turns()
    for one in asked:
        one.cancel()
    assert [len(t.turns) for t in episode.episode(None, cut=False).trajectories] == [1]
    assert log.places == log.void == [(1, 0)]
