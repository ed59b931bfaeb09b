"""Reward processes against rewards that start, kill, hang and break what is not theirs."""

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from late_rewards import HeldClock, late_at_once, noted
from reward_pools import (
    LIMIT_S,
    answers_of,
    episode,
    episodes,
    prompt,
    reason,
    section,
    there,
    totals,
    with_pool,
    write_plugin,
)
from waiting import eventually, wait_until

from rlax_plugin.base.errors import PluginError, RlaxError
from rlax_plugin.base.types import Score, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.reward import pool as pool_module
from rlax_plugin.reward.messages import episode_to, line, prompt_to, score_from, shared
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.reward.process import Failures, form_of
from rlax_plugin.reward.scoring import Clock

PLUGIN = r"""
import os, socket, stat, subprocess, sys, threading, time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

def start_things():
    with open("started", "a") as file:
        print(os.getpid(), file=file)
        print(subprocess.Popen(SLEEP).pid, file=file)
        print(subprocess.Popen(SLEEP, start_new_session=True).pid, file=file)
        if (child := os.fork()) == 0:
            time.sleep(600)
        print(child, file=file)

def hang(text):
    open("hanging", "w").write(text)
    time.sleep(600)

def open_to_others():
    "Descriptors that a program started from here would get, beside the three ordinary ones."
    return [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and inherited(int(fd))]

def inherited(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False

def judge(prompt, completion):
    what, _, how = completion.partition(" ")
    if what == "start":
        start_things()
        if how == "hang":
            hang(completion)
        if how == "die":
            os._exit(3)
    elif what == "hang":
        hang(completion)
    elif what == "raise":
        print("noise on standard output")
        raise KeyError(how)
    elif what == "wait":
        open("waiting", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    elif what == "die":
        os._exit(3)
    elif what == "segfault":
        import ctypes, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump may take seconds
        ctypes.string_at(0)
    elif what == "later":
        threading.Timer(float(how), os._exit, (4,)).start()
    elif what == "stdin":
        return float(len(sys.stdin.read()) + len(os.read(0, 100)))
    elif what == "open":
        return float(len(open_to_others()))
    elif what == "forge":
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, how.encode() + b"\n")
            except OSError:
                pass
    return 1.0

@hookimpl
def rlax_register_reward():
    return {
        "wild": Extension(NoOptions, lambda config, context: judge),
        "tame": Extension(NoOptions, lambda config, context: lambda prompt, completion: 0.5),
    }
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path, monkeypatch, PLUGIN)


def rewards(**changes: object) -> RlaxSection:
    return section("tame", "wild", **changes)


async def scored(pool: RewardPool, *texts: str, of: str = "p") -> list[Score | Unscored]:
    return await pool.score(prompt(of), episodes(*texts))


def own_processes() -> list[psutil.Process]:
    """The reward processes of this test."""

    def is_one(process: psutil.Process) -> bool:
        with suppress(psutil.Error):  # of a zombie, for example
            return "rlax_plugin.run.programs.reward" in process.cmdline()
        return False

    return [child for child in psutil.Process().children() if is_one(child)]


def started() -> list[int]:
    return [int(line) for line in Path("started").read_text().split()]


def none_alive(pids: list[int]) -> bool:
    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return not any(map(lives, pids))


def test_what_a_reward_starts_ends_with_it():
    async def work(pool: RewardPool) -> None:
        assert totals(await scored(pool, "start hang")) == [None]
        assert len(started()) == 4
        await eventually(lambda: none_alive(started()), "the end of what hung")
        (died,) = await scored(pool, "start die")
        assert "exit code 3" in reason(died)
        in_group = [pid for i, pid in enumerate(started()) if i != 6]
        await eventually(lambda: none_alive(in_group), "the end of its group")
        assert totals(await scored(pool, "start")) == [1.5]
        assert not none_alive(started()[8:])

    try:
        with_pool(rewards(), work, clocks=late_at_once(Path("hanging")))
    finally:  # a session of its own, left by a process that is gone: nobody can find it
        os.kill(started()[6], signal.SIGKILL)
    assert len(started()) == 12
    wait_until(lambda: none_alive(started()), "the end of all that was started")


def test_nothing_outlives_a_trainer_that_is_killed():
    script = (
        "import asyncio, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_reward_processes import rewards, scored, with_pool\n"
        "with_pool(rewards(), lambda pool: scored(pool, 'start hang'))\n"
    )
    tests = Path(__file__).parents[2]
    paths = [str(Path(__file__).parent), str(tests / "helpers"), str(tests.parent)]
    trainer = subprocess.Popen([sys.executable, "-c", script, *paths])
    try:
        wait_until(lambda: Path("started").exists() and len(started()) == 4, "a reward that hangs")
    finally:
        trainer.kill()
        trainer.wait(120)
    wait_until(lambda: none_alive(started()), "the end of the reward process and its own")


def test_jobs_travel_where_no_other_process_listens_and_standard_input_is_empty():
    async def work(pool: RewardPool) -> None:
        assert totals(await scored(pool, "stdin", "open", "good")) == [0.5, 0.5, 1.5]

    with_pool(rewards(), work)


def test_an_answer_that_is_none_is_the_error_of_its_sample():
    forged = '{"job": 0, "scores": [{"parts": [4, 5]}]}'

    async def work(pool: RewardPool) -> None:
        found = await scored(pool, "good", f"forge {forged}", "good")
        assert totals(found) == [1.5, None, 1.5]
        said = reason(found[1])
        assert "rlax.rewards.1 (wild) sent something that is not an answer" in said

    with_pool(rewards(), work)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ({"parts": None}, KeyError, "parts"),
        ({"parts": [4, 5, 0]}, ValueError, "3 parts of 2 rewards"),
        ({"parts": [4, 6]}, ValueError, "is 6: a reward may return from -5"),
        ({"tokens": ["AAAAAAAAAAA=", "AAAAAAAAJkA="]}, ValueError, "the reward is 11"),  # 11
        ({"parts": ["4", 5]}, TypeError, "a reward returned a text"),
        ({"parts": [4, float("nan")]}, ValueError, "the reward is nan"),
        ({"metrics": {"a/b": 1}}, ValueError, "a metric has the name 'a/b'"),
        ({"metrics": {"a": float("nan")}}, ValueError, "metric 'a' is nan"),
        ({"metrics": {str(i): i for i in range(33)}}, ValueError, "there are 33 metrics"),
        ({"tokens": ["AAAAAAAAAAA="]}, ValueError, "token_rewards have the shapes"),
        ({"tokens": ["AAAAAAAAAAA=", "AAAAAAAA8H8="]}, ValueError, "are not all finite"),
    ],
)
def test_what_is_no_score(answer, error, says):
    """Of two rewards, for two turns of one token each."""
    good = {"parts": [4, 5], "metrics": {"a": 1}, "tokens": ["AAAAAAAAAAA="] * 2}
    found = score_from(good, [1.0, 1.0], [1, 1], 5.0)
    assert (found.total, found.parts, found.metrics) == (9.0, (4.0, 5.0), {"a": 1.0})
    assert [one.tolist() for one in found.token_rewards] == [[0.0], [0.0]]
    whole = {"parts": [4, 5]} | answer
    with pytest.raises(error, match=says):
        score_from({k: v for k, v in whole.items() if v is not None}, [1.0, 1.0], [1, 1], 5.0)


def test_an_idle_process_that_dies_costs_no_sample():
    notes: list[str] = []

    async def work(pool: RewardPool) -> None:
        assert totals(await scored(pool, "good")) == [1.5]
        for noticed in (False, True):
            (process,) = own_processes()
            process.kill()
            if noticed:
                await eventually(lambda: pool.replaced == 2)
            assert totals(await scored(pool, "good", "good")) == [1.5, 1.5]
        assert pool.replaced == 2

    with_pool(rewards(), work, notes.append)
    assert "SIGKILL" in notes[0] and "an idle reward process was ended by SIGKILL" in notes[1]


def test_a_process_that_an_earlier_job_ends_costs_no_sample_of_a_later_one():
    async def work(pool: RewardPool) -> None:
        assert totals(await scored(pool, "later 0.3")) == [1.5]
        while pool.replaced == 0:
            assert totals(await scored(pool, "good")) == [1.5]
        assert totals(await scored(pool, "good")) == [1.5]

    with_pool(rewards(), work)


def test_a_job_that_is_cancelled_costs_the_next_one_nothing():
    async def work(pool: RewardPool) -> None:
        hanging = asyncio.ensure_future(scored(pool, "hang"))
        await there(Path("hanging"))
        hanging.cancel()
        assert totals(await scored(pool, "good", "good")) == [1.5, 1.5]
        assert pool.replaced == 0

    with_pool(rewards(), work)  # under reward_s of 120 s, which the test would not outlast twice


def test_only_what_goes_wrong_is_lost_and_its_reason_names_the_reward_and_its_key():
    notes: list[str] = []

    async def work(pool: RewardPool) -> None:
        found = await scored(pool, "good", "die", "segfault", "hang", "raise it", "good")
        assert totals(found) == [1.5, None, None, None, None, 1.5]
        died, crashed, hung, raised = map(reason, found[1:5])
        assert died == "the reward process of rlax.rewards.1 (wild) ended with exit code 3"
        assert "rlax.rewards.1 (wild) was ended by SIGSEGV" in crashed
        assert hung.startswith("rlax.rewards.1 (wild) (slowest answer so far: ")
        assert hung.endswith("longer than 120 s (set rlax.deadlines.reward_s to wait longer)")
        assert "KeyError: 'it'" in raised

    with_pool(rewards(), work, notes.append, clocks=late_at_once(Path("hanging")))
    assert "rlax.rewards.1 (wild) ended with exit code 3, on prompt p" in notes[0]
    assert "rewards.log" in notes[0]
    log = Path("logs/rewards.log").read_text()
    assert "noise" in log and "Traceback" in log and "KeyError: 'it'" in log


def test_rewards_that_only_end_their_process_end_the_run():
    notes: list[str] = []

    async def work(pool: RewardPool) -> None:
        groups = (scored(pool, *["die"] * 4, of=f"p{i}") for i in range(4))
        with pytest.raises(RlaxError) as error:
            await asyncio.gather(*groups)
        said = str(error.value)
        assert "rlax.rewards.1 (wild) ended with exit code 3" in said
        # Twice for each process, and of three prompts: the oldest group's samples go first.
        assert re.search("[45] times in a row", said) and "rewards.log" in said
        assert pool.replaced in (4, 5, 6)  # another may have died meanwhile

    with_pool(rewards(reward_processes=2), work, notes.append, most_in_vain=(2, 40))
    assert [note.partition(" so far")[0][-1] for note in notes] == ["1", "2", "4"]


def test_one_round_of_processes_that_end_together_does_not_end_the_run():
    async def work(pool: RewardPool) -> None:
        groups = (scored(pool, "die", of=f"p{i}") for i in range(3))
        assert [totals(found) for found in await asyncio.gather(*groups)] == [[None]] * 3
        assert 3 <= pool.replaced < 9
        assert totals(await scored(pool, "good", of="other")) == [1.5]

    with_pool(rewards(reward_processes=3), work, most_in_vain=(3, 40))


def test_it_ends_with_a_trainer_that_is_killed_before_it_has_read_an_answer() -> None:
    """The connection is then reset, and does not end."""
    ours, theirs = socket.socketpair()
    hello = {"section": rewards().model_dump(mode="json"), "run_dir": "", "key": "rlax.rewards"}
    hello |= {"environment": "rlax.environment", "functions": {}, "maxtext": {}}
    asked = [episode_to(episode(""), prompt(), False)]
    job = {"job": 1, "prompt": prompt_to(prompt()), "episodes": asked}
    with ours, theirs, shared() as memory:
        descriptors = theirs.fileno(), memory.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "rlax_plugin.run.programs.reward", *map(str, descriptors)],
            pass_fds=descriptors,
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(LIMIT_S)
        ours.sendall(line(hello))
        assert json.loads(ours.makefile().readline())["ready"]
        ours.sendall(line(job))
        assert select.select([ours], [], [], LIMIT_S)[0]
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_tracebacks_are_logged_once_for_each_place_and_not_without_end(capsys):
    def judge(prompt, completion):
        exec(compile("\n" * int(completion) + "raise ValueError('boom')", "judge", "exec"))

    failures = Failures()
    for number in (1, 1, *range(40)):
        (found,) = answers_of([form_of(judge)], episodes(str(number)), failures=failures)
        assert found["error"].startswith("the reward: ValueError: boom")
    assert capsys.readouterr().err.count("a reward failed on prompt p:") == len(failures.shown)
    assert len(failures.shown) == 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plugins": ["rlax_nothing"]}, "rewards.log"),
        ({"deadlines": {"startup_s": 0.01}}, "took longer than 0.01 s .*rlax.deadlines.startup_s"),
    ],
)
def test_a_process_that_does_not_start_stops_the_start(changes, said):
    async def work(pool: RewardPool) -> None:
        pytest.fail("it must not start")

    with pytest.raises(RlaxError, match="did not start") as error:
        with_pool(rewards(**changes), work)
    assert re.search(said, f"{error.value} {error.value.__cause__}")


async def test_an_answer_that_came_while_the_trainer_was_paused_is_read():
    """A trainer process that is paused, as by a busy machine, blames no reward for it."""
    clocks: list[HeldClock] = []

    pool, before = RewardPool(rewards(), Path(), clocks=noted(clocks)), own_sockets()
    try:
        await pool.start()
        (answers,) = own_sockets() - before
        found = asyncio.ensure_future(scored(pool, "wait"))
        await there(Path("waiting"))
        (clock,) = clocks
        clock.expire()
        Path("go").touch()
        assert select.select([answers], [], [], 120)[0]
        assert totals(await found) == [1.5] and pool.replaced == 0
    finally:
        await pool.close()


def test_a_job_that_began_later_is_looked_at_again_after_what_it_has_left(monkeypatch):
    later, looks = pool_module._later, []

    class Begun(Clock):
        @property
        def left_s(self) -> float:
            return 77.0

    def noted_later(delay_s: float, look: Callable[[], None]) -> asyncio.TimerHandle:
        if delay_s > 60:
            looks.append((delay_s, look))
        return later(delay_s, look)

    async def work(pool: RewardPool) -> None:
        found = asyncio.ensure_future(scored(pool, "wait"))
        await there(Path("waiting"))
        looks[0][1]()  # as if the time of the job before it were over
        Path("go").touch()
        assert totals(await found) == [1.5]

    monkeypatch.setattr(pool_module, "_later", noted_later)
    with_pool(rewards(), work, clocks=lambda job, expired: Begun(job.limit_s, expired))
    assert [delay_s for delay_s, _ in looks] == [77.0, 77.0]


def own_sockets() -> set[int]:
    """Descriptors of this process's connections to processes that it has started."""
    return {one.fd for one in psutil.Process().net_connections("unix")}


def test_a_reward_that_has_no_form_is_named() -> None:
    with pytest.raises(PluginError, match=r"rlax.rewards.0: a dict cannot be called, and has"):
        form_of({}, name="rlax.rewards.0")
