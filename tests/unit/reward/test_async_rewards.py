"""Async rewards: many at a time in one process, each of which costs only itself."""

import asyncio
from pathlib import Path

import pytest
from late_rewards import HeldClock, late_at_once, noted
from reward_pools import episodes, prompt, reason, section, there, totals, with_pool, write_plugin
from waiting import eventually

PLUGIN = r"""
import asyncio, os, time, threading

here = most = 0

async def meet(prompt, completion):
    "Returns once ``completion`` calls have been under way at the same time."
    global here, most
    here += 1
    most = max(most, here)
    while most < int(completion):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    here -= 1
    return float(most)

def hanging(text):
    with open("hanging.tmp", "w") as file:
        file.write(text)
    os.rename("hanging.tmp", "hanging")

class Wild:
    async def score(self, prompt, episode):
        text, _, how = episode.text.partition(" ")
        if text == "good":
            while how and not os.path.exists(how):
                await asyncio.sleep(0.01)
        if text == "waits":
            hanging(episode.text)
            await asyncio.sleep(600)
        if text == "stays":
            hanging(episode.text)
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass
        if text == "blocks":
            async def block():
                hanging(episode.text)
                time.sleep(600)
            await asyncio.gather(block())
        if text == "dies":
            await asyncio.sleep(0)
            open("died", "a").write("x")
            os._exit(3)
        if text == "thread":
            def die():
                open("died", "a").write("x")
                os._exit(4)
            threading.Timer(0.2, die).start()
            await asyncio.sleep(600)
        if text == "exits":
            async def leave():
                raise SystemExit("bye")
            await asyncio.create_task(leave())
        return 1.0

def slow(prompt, completion):
    if completion == "stuck":
        hanging(completion)
        time.sleep(600)
    if completion == "wraps":
        try:
            open("/dev/full", "wb", buffering=0).write(b"x")
        except OSError as error:
            raise ValueError("the cache cannot be written") from error
    time.sleep(0.05)
    return 0.5

@hookimpl
def rlax_register_reward():
    parts = {"meet": meet, "wild": Wild(), "slow": slow}
    return {
        name: Extension(NoOptions, lambda config, context, part=part: part)
        for name, part in parts.items()
    }
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path, monkeypatch):
    write_plugin(tmp_path, monkeypatch, PLUGIN)


def test_many_run_at_a_time_and_no_more_than_the_config_says():
    async def work(pool):
        assert pool.needs.waits
        found = await pool.score(prompt(), episodes(*["3"] * 12))
        assert totals(found) == [3.0] * 12

    with_pool(section("meet", reward_concurrency=3), work)


def test_one_that_hangs_is_cancelled_or_ended_and_costs_only_itself():
    async def work(pool):
        for how, replaced in (("waits", 0), ("stays", 1), ("blocks", 2)):
            found = await pool.score(prompt(), episodes("good", how, "good", "good"))
            assert totals(found) == [1.0, None, 1.0, 1.0]
            assert reason(found[1]).startswith("rlax.rewards.0 (wild)")
            assert "rlax.deadlines.reward_s" in reason(found[1])
            assert pool.replaced == replaced
            assert totals(await pool.score(prompt(), episodes("good"))) == [1.0]

    with_pool(section("wild"), work, clocks=late_at_once(Path("hanging")))


def test_the_one_that_blocks_is_late_and_not_those_that_wait_for_it():
    """All have begun before it, and their time is over first."""
    clocks: list[HeldClock] = []

    async def work(pool):
        group = asyncio.ensure_future(
            pool.score(prompt(), episodes("good go", "good go", "blocks", "good go"))
        )
        await there(Path("hanging"))
        Path("go").touch()
        assert len(clocks) == pool.under_way == 4
        for number in (0, 3, 2):
            clocks[number].expire()
        found = await group
        assert totals(found) == [1.0, 1.0, None, 1.0] and pool.replaced == 1
        assert "rlax.deadlines.reward_s" in reason(found[2])

    with_pool(section("wild"), work, clocks=noted(clocks))


def test_one_that_ends_the_process_is_found_out_and_those_beside_it_are_scored():
    """By the step in which it ended; or, of a thread, because each is tried alone."""
    notes: list[str] = []

    async def work(pool):
        assert totals(await pool.score(prompt(), episodes("good"))) == [1.0]
        # A thread may end the process just as another one takes its turn: a third try finds out.
        for how, code, tries in (("dies", 3, {2}), ("thread", 4, {2, 3})):
            before = pool.replaced
            found = await pool.score(prompt(), episodes("good died", how, "good died", "good died"))
            assert totals(found) == [1.0, None, 1.0, 1.0]
            said = f"the reward process of rlax.rewards.0 (wild) ended with exit code {code}"
            assert reason(found[1]) == said
            ends = pool.replaced - before
            assert ends in tries and ends == len(Path("died").read_text())
            Path("died").unlink()

    with_pool(section("wild"), work, notes.append)
    assert "exit code 3, on prompt p; another one is started" in notes[0]
    assert any("exit code 4" in note for note in notes)


def test_a_function_beside_an_async_reward_runs_one_at_a_time_and_is_ended_where_it_hangs():
    """Those that wait for it are not late: their clocks stand."""

    async def work(pool):
        found = await pool.score(prompt(), episodes(*["good"] * 3, "stuck", *["good"] * 3))
        assert totals(found) == [1.5] * 3 + [None] + [1.5] * 3
        assert reason(found[3]).startswith("rlax.rewards.1 (slow)")
        assert pool.replaced == 1

    with_pool(section("wild", "slow"), work, clocks=late_at_once(Path("hanging")))


def test_the_cause_of_an_error_of_a_function_beside_an_async_reward_counts():
    async def work(pool):
        (one,) = await pool.score(prompt(), episodes("wraps"))
        assert one.ending == "disk_full" and "the cache cannot be written" in reason(one)

    with_pool(section("wild", "slow"), work)


def test_an_exit_is_an_error_and_a_cancelled_group_ends_and_the_event_loop_goes_on():
    async def work(pool):
        found = await pool.score(prompt(), episodes("good", "exits", "good"))
        assert totals(found) == [1.0, None, 1.0] and pool.replaced == 0
        assert "SystemExit: bye" in reason(found[1])

        group = asyncio.ensure_future(pool.score(prompt(), episodes("waits", "good go")))
        await there(Path("hanging"))
        group.cancel()
        await asyncio.wait({group})
        await eventually(lambda: not pool.under_way)
        assert totals(await pool.score(prompt(), episodes("good"))) == [1.0]
        assert pool.replaced == 0

    with_pool(section("wild"), work)
