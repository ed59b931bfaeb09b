"""Reward processes that are killed, and what was meant for the one before."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from played import Played
from reward_pools import prompt, section, with_pool, write_plugin
from waiting import eventually

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.ports.environment import Outcome
from rlax_plugin.reward.pool import RewardPool

# Each process says that it starts, and is ready once "go" is there.
PLUGIN = r"""
import os, time

with open("starts", "a") as file:
    file.write(f"{os.getpid()}\n")
while not os.path.exists("go"):
    time.sleep(0.01)
if os.path.exists("wrong"):
    os._exit(3)

class OneMore(Environment):
    def first(self, prompt):
        return prompt.tokens

    async def play(self, prompt, session):
        answer = await session.sample("more")
        return Outcome(answer.text, rewards=(0.0, 1.0))

@hookimpl
def rlax_register_environment():
    return {"one_more": Extension(NoOptions, lambda config, context: OneMore())}
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path, monkeypatch, PLUGIN)


def config(**changes: object):
    return section(environment={"name": "one_more"}, **changes)


def starts() -> list[int]:
    file = Path("starts")
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


async def started(count: int) -> int:
    """The process that was started last, once there were so many."""
    return (await eventually(lambda: starts()[count - 1 :], f"{count} processes"))[-1]


def test_answers_for_a_process_that_is_gone_do_not_reach_the_next_one() -> None:
    """Which would end of them while it starts, each time that one comes."""
    Path("go").touch()
    notes: list[str] = []

    async def work(pool: RewardPool) -> None:
        held = [Played() for _ in range(6)]
        for one in held:
            one.go.clear()
        plays = asyncio.gather(*(pool.play(prompt(), one) for one in held))
        await eventually(lambda: all(one.waits for one in held))
        Path("go").unlink()
        os.kill(await started(1), signal.SIGKILL)
        await started(2)
        for one in held:  # one answer after the other, while the second process starts
            one.go.set()
            await asyncio.sleep(0.02)
        assert psutil.pid_exists(starts()[-1]) and len(starts()) == 2
        Path("go").touch()
        assert await plays == [Outcome("1 more", (0.0, 1.0))] * 6
        assert [one.beginnings for one in held] == [2] * 6
        assert len(starts()) == 2 and pool.replaced == 1

    with_pool(config(), work, notes.append)
    assert len(notes) == 1 and "was ended by SIGKILL" in notes[0]


async def test_a_process_that_is_killed_while_the_run_starts_is_started_again() -> None:
    notes: list[str] = []

    pool = RewardPool(config(reward_processes=2), Path(), note=notes.append)
    starting = asyncio.ensure_future(pool.start())
    try:
        await started(2)
        os.kill(starts()[0], signal.SIGKILL)
        os.kill(await started(3), signal.SIGKILL)
        await started(4)
        Path("go").touch()
        await starting
        assert await pool.play(prompt(), Played()) == Outcome("1 more", (0.0, 1.0))
    finally:
        await pool.close()
    said = "a reward process was ended by SIGKILL before it had started; it is started again"
    assert notes == [said] * 2


def test_one_that_ends_by_itself_while_the_run_starts_is_not_tried_again() -> None:
    Path("go").touch()
    Path("wrong").touch()

    async def work(pool: RewardPool) -> None:
        pytest.fail("it must not start")

    with pytest.raises(RlaxError, match="ended with exit code 3 before it had started"):
        with_pool(config(), work)
    assert len(starts()) == 1
