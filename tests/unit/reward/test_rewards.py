"""The reward pool with real reward processes and a reward that does everything wrong."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

import numpy as np
import psutil
import pytest
from late_rewards import HeldClock, late_at_once, noted
from waiting import eventually

from rlax_plugin.base.errors import PluginError, RlaxError
from rlax_plugin.base.types import Episode, Prompt, Score, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.reward.process import Failures, form_of, scores_of

PLUGIN = """
import os, time
from rlax_plugin.api import Extension, NoOptions, hookimpl

def judge(prompt, completion):
    print("noise on standard output")
    if completion == "hang":
        open("hanging", "w").write("hang")
        time.sleep(3600)
    if completion == "waits":
        open("waiting", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
        return 0.5
    if completion == "nan":
        return float("nan")
    return {"good": 1.0, "bad": 0.0}[completion]

def length(prompt, completion):
    return 0.25 * len(completion)

@hookimpl
def rlax_register_reward():
    return {
        "wild": Extension(NoOptions, lambda config, context: judge),
        "size": Extension(NoOptions, lambda config, context: length),
    }
"""
PROMPT = Prompt("p", np.array([1], np.int32), "1", "one")


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RlaxSection:
    (tmp_path / "wild_reward.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return RlaxSection.model_validate(
        {
            "plugins": ["wild_reward"],
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "wild"}, {"name": "size"}],
            "deadlines": {"reward_s": 60.0, "startup_s": 120.0},
        }
    )


def own_sockets() -> set[int]:
    """Descriptors of this process's connections to processes that it has started."""
    return {one.fd for one in psutil.Process().net_connections("unix")}


def episodes(*texts: str) -> list[Episode]:
    return [Episode(i, (), text) for i, text in enumerate(texts)]


def test_only_what_went_wrong_is_lost(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def main():
        pool = RewardPool(section, tmp_path, clocks=late_at_once(tmp_path / "hanging"))
        try:
            await pool.start()
            texts = ["good", "bad", "nan", "what", "good", "hang"]
            return await pool.score(PROMPT, episodes(*texts))
        finally:
            await pool.close()

    scores = asyncio.run(asyncio.wait_for(main(), 240))
    assert [s.total if isinstance(s, Score) else None for s in scores] == [
        *(2.0, 0.75, None),
        *(None, 2.0, None),
    ]
    assert scores[1].parts == (0.0, 0.75) and scores[0].parts == (1.0, 1.0)
    errors = {i: s.reason for i, s in enumerate(scores) if isinstance(s, Unscored)}
    assert set(errors) == {2, 3, 5}
    assert "the reward is nan" in errors[2] and "KeyError: 'what'" in errors[3]
    assert errors[5].startswith("rlax.rewards.0 (wild) (slowest answer so far: ")
    assert errors[5].endswith("took longer than 60 s (set rlax.deadlines.reward_s to wait longer)")
    log = (tmp_path / "logs/rewards.log").read_text()
    assert "noise" in log and "Traceback" in log and "KeyError: 'what'" in log


def test_tracebacks_are_logged_once_for_each_place_and_not_without_end(capsys):
    def judge(prompt, completion):
        exec(compile("\n" * int(completion) + "raise ValueError('boom')", "judge", "exec"))

    async def call(form, arguments):
        return form.method(*arguments)

    failures = Failures()
    for number in (1, 1, *range(40)):
        scores = scores_of(
            [form_of(judge)],
            PROMPT,
            episodes(str(number)),
            [[]],
            call=call,
            at=[].append,
            failures=failures,
        )
        assert asyncio.run(scores)[0]["error"].startswith("the reward: ValueError: boom")
    assert capsys.readouterr().err.count("a reward failed on prompt p:") == len(failures.shown)
    assert len(failures.shown) == 20


def test_a_plug_in_that_is_not_there_stops_the_start(section, tmp_path):
    async def main():
        pool = RewardPool(section.model_copy(update={"plugins": ("rlax_nothing",)}), tmp_path)
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(RlaxError, match=r"did not start; see .*rewards.log"):
        asyncio.run(asyncio.wait_for(main(), 240))


def test_a_slow_start_is_not_the_rewards_fault(section, tmp_path):
    deadlines = section.deadlines.model_copy(update={"startup_s": 0.01})

    async def main():
        pool = RewardPool(section.model_copy(update={"deadlines": deadlines}), tmp_path)
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(RlaxError, match="did not start") as error:
        asyncio.run(asyncio.wait_for(main(), 240))
    assert "starting a reward process took longer than 0.01 s" in str(error.value.__cause__)
    assert "rlax.deadlines.startup_s" in str(error.value.__cause__)


def test_an_answer_that_came_while_the_trainer_was_paused_is_read(section, tmp_path, monkeypatch):
    """A trainer process that is paused, as by a busy machine, blames no reward for it."""
    monkeypatch.chdir(tmp_path)
    clocks: list[HeldClock] = []

    async def main():
        pool = RewardPool(section, tmp_path, clocks=noted(clocks))
        try:
            before = own_sockets()
            await pool.start()
            (answers,) = own_sockets() - before
            scores = asyncio.ensure_future(pool.score(PROMPT, episodes("waits")))
            await eventually(lambda: (tmp_path / "waiting").exists())
            (clock,) = clocks
            clock.expire()
            (tmp_path / "go").touch()
            assert select.select([answers], [], [], 120)[0]
            return await scores, pool.replaced
        finally:
            await pool.close()

    ((score,), replaced) = asyncio.run(asyncio.wait_for(main(), 240))
    assert isinstance(score, Score) and score.parts == (0.5, 1.25) and replaced == 0


def test_a_reward_that_has_no_form_is_named() -> None:
    with pytest.raises(PluginError, match=r"rlax.rewards.0: a dict cannot be called, and has"):
        form_of({}, name="rlax.rewards.0")
