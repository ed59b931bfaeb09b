"""Who is to blame: when rewards as a whole fail, how long jobs may take, and how samples end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reward_pools
from late_rewards import late_at_once
from reward_pools import episode, section, with_pool, write_plugin

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import Score, Unscored
from rlax_plugin.reward import scoring
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.reward.scoring import Blame, Clock


def judged(blame: Blame, prompt: str, failure: str = "") -> None:
    job: Any = SimpleNamespace(
        prompt=SimpleNamespace(id=prompt), failure=failure, succeeded=not failure,
        late=None, abandoned=False, clock=SimpleNamespace(used_s=0.1), plays=False,
    )  # fmt: skip
    blame.done(job)


def test_most_calls_of_several_prompts_must_fail_lately() -> None:
    blame = Blame(1, ["rlax.rewards.0 (x)"], "rlax.environment (y)", Path("log"), print)
    for prompt in ("a", "a", "a", "b"):
        judged(blame, prompt, "x: boom")
    assert blame.failing == ""  # they may be at fault themselves
    judged(blame, "c", "x: bang")
    assert blame.failing == "x: bang"
    for _ in range(4):
        judged(blame, "d")
    assert blame.failing == "x: bang"  # 5 of 9
    judged(blame, "d")
    assert blame.failing == ""
    for _ in range(64):
        judged(blame, "e")
    for _ in range(32):
        judged(blame, "f", "x: boom")
    judged(blame, "g", "x: boom")
    assert blame.failing == ""  # only two prompts
    judged(blame, "h", "x: boom")
    assert blame.failing == "x: boom"  # 34 of the last 64


@pytest.mark.parametrize("reward", [0, 7, -100])  # as the process says, which may be hostile
def test_a_late_reward_of_a_group_names_the_deadline_of_a_sample(reward: int) -> None:
    blame = Blame(1, ["rlax.rewards.0 (x)"], "rlax.environment (y)", Path("log"), print)
    job: Any = SimpleNamespace(
        plays=False, on_loop=True, reward=reward, samples=4, limit_s=40.0, limit_key="reward_s"
    )
    said = str(blame.late(job))
    assert said.startswith("rlax.rewards.0 (x) for the 4 samples of a group (slowest answer so far")
    assert "took longer than 40 s (set reward_s" in said


@pytest.mark.parametrize("results", [0, 64])
def test_a_process_that_ends_counts_as_a_failure(results: int) -> None:
    blame = Blame(1, ["rlax.rewards.0 (x)"], "rlax.environment (y)", Path("log"), lambda said: None)
    for _ in range(results):  # before, which minutes of processes that end would not outnumber
        judged(blame, "d")
    for prompt in ("a", "b", "c"):
        assert blame.failing == ""
        job: Any = SimpleNamespace(
            prompt=SimpleNamespace(id=prompt), plays=False, on_loop=True, reward=0,
            deaths=0, alone=False,
        )  # fmt: skip
        blame.verdicts("ended with exit code 3", [job], 2)
    said = "process_ended: the reward process of rlax.rewards.0 (x) ended with exit code 3"
    assert blame.failing == said  # as ``rlax status`` and ``rlax doctor`` quote it
    judged(blame, "d")
    assert (blame.failing == "") == (results > 0)


async def test_a_clock_that_goes_on_has_only_the_time_that_is_left(monkeypatch) -> None:
    now_s, delays_s = [0.0], list[float]()
    monkeypatch.setattr(scoring, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def call_later(delay_s: float, expired: object) -> SimpleNamespace:
        delays_s.append(delay_s)
        return SimpleNamespace(cancel=lambda: None)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_later", call_later)
        clock = Clock(5.0)
        for start_s, stop_s in ((0.0, 3.0), (100.0, 101.5)):
            now_s[0] = start_s
            clock.go()
            now_s[0] = stop_s
            clock.stop()
        assert (clock.used_s, clock.left_s) == (4.5, 0.5)
    assert delays_s == [5.0, 2.0]


PLUGIN = r"""
import errno, os, signal, time

class Judge:
    abstains = True

    def __call__(self, prompt, completion):
        what, _, detail = completion.partition(" ")
        if what == "pays":
            return float(detail)
        if what == "raises":
            raise eval(detail)
        if what == "returns":
            return eval(detail)
        if what == "dies":
            os.kill(os.getpid(), getattr(signal, detail))
        if what == "dies_once":
            if not os.path.exists("was here"):
                open("was here", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return 1.0
        if what == "exits":
            os._exit(int(detail))
        if what == "hangs":
            open("hanging", "w").write(completion)
            time.sleep(600)

@hookimpl
def rlax_register_reward():
    return {"judge": Extension(NoOptions, lambda config, context: Judge())}
"""
# What the reward of a completion does -> its ending, and what trains; None: nothing.
ENDINGS: dict[str, tuple[Ending | None, float | None]] = {
    "pays 0.5": (None, 0.5),
    "dies_once": (None, 1.0),  # it is scored again, in another process
    "returns Score(0.0, ending=Ending.OVER_TIME)": (Ending.OVER_TIME, 0.0),
    "returns Score(0.0, ending=Ending.OVER_MEMORY)": (Ending.OVER_MEMORY, 0.0),
    "returns Score(0.0, ending=Ending.CRASHED)": (Ending.CRASHED, 0.0),
    "returns Score(0.0, ending='unreadable')": (Ending.UNREADABLE, 0.0),
    "returns Score(1.0, ending=Ending.SERVER_FAILED)": (Ending.REWARD_FAILED, None),
    "returns Score(1.0, ending='no such ending')": (Ending.REWARD_FAILED, None),
    "returns float('nan')": (Ending.REWARD_FAILED, None),
    "returns '1'": (Ending.REWARD_FAILED, None),
    "returns None": (Ending.ABSTAINED, None),
    "raises KeyError('x')": (Ending.REWARD_FAILED, None),
    "raises MemoryError()": (Ending.REWARD_FAILED, None),
    "raises SystemExit(3)": (Ending.REWARD_FAILED, None),
    "raises ConnectionRefusedError(111, 'x')": (Ending.SERVER_FAILED, None),
    "raises TimeoutError()": (Ending.SERVER_FAILED, None),
    "raises OSError(errno.ENOSPC, 'x')": (Ending.DISK_FULL, None),
    "raises DeadlineError('an import', 1.0, 'rlax.deadlines.startup_s')": (
        Ending.REWARD_FAILED,
        None,
    ),
    "raises SandboxError('x')": (Ending.SANDBOX_FAILED, None),
    "raises OverLimitError('x', Ending.OVER_TIME)": (Ending.REWARD_FAILED, None),
    "dies SIGKILL": (Ending.PROCESS_ENDED, None),
    "dies SIGSEGV": (Ending.PROCESS_ENDED, None),
    "exits 0": (Ending.PROCESS_ENDED, None),
    "hangs": (Ending.REWARD_LATE, None),
}


def test_each_way_in_which_a_reward_ends_has_its_status_and_trains_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, monkeypatch, PLUGIN)
    found: dict[str, Score | Unscored] = {}

    async def work(pool: RewardPool) -> None:
        for index, text in enumerate(ENDINGS):
            (found[text],) = await pool.score(reward_pools.prompt(text), [episode(text, index)])
        assert pool.failing.startswith("reward_late: rlax.rewards.0 (judge) (slowest answer")

    with_pool(section("judge"), work, clocks=late_at_once(Path("hanging")))
    for text, (ending, total) in ENDINGS.items():
        score = found[text]
        assert (score.ending, getattr(score, "total", None)) == (ending, total), text
        trains = "its reward" if ending is None else ending.trains
        assert (trains == "nothing") == isinstance(score, Unscored), text
