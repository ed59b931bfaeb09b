"""``rlax.reward_limit``: what a reward, a token or a turn of an environment may get."""

from typing import Any

import numpy as np
import pytest
from played import Played
from reward_pools import (
    answers_of,
    episode,
    episodes,
    prompt,
    reason,
    sampled,
    section,
    totals,
    with_pool,
)

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Score, Turn
from rlax_plugin.reward.messages import score_from
from rlax_plugin.reward.process import form_of
from rlax_plugin.reward.scoring import PlayJob

NAME = "rlax.rewards.0 (judge)"
SAID = f"{NAME} may return from -1000 to 1000 (rlax.reward_limit)"


def given(values: list[Any], weight: float = 1.0) -> list[dict[str, Any]]:
    """What becomes of the values that a judge gives; each sample has two tokens."""

    def judge(prompt, completion):
        return values[int(completion)]

    forms = [form_of(judge, weight, NAME, 1000.0)]
    answers = answers_of(forms, episodes(*map(str, range(len(values)))))
    return [
        one if "error" in one else {"total": score_from(one, [weight], [2]).total}
        for one in answers
    ]


def test_a_value_out_of_bounds_is_refused_with_its_name_and_costs_its_sample_alone():
    found = given([1000, -1000.0, 1e300, -1000.1, Score(1001.0), float("inf"), 0.5])
    errors = [one.get("error", "") for one in found]
    assert [one.get("total") for one in found] == [1000, -1000, None, None, None, None, 0.5]
    assert errors[2].startswith(f"ValueError: the reward is 1e+300: {SAID}")
    assert "the reward is -1000.1" in errors[3] and SAID in errors[4]
    assert f"the reward is inf: {NAME} must return a finite number" in errors[5]


def test_a_text_is_no_reward_and_neither_is_a_number_without_end():
    values = ["0.5", b"1", Score("1"), 10**400, True, np.float32(0.5), np.array(0.25)]
    found = given(values)
    errors = [one.get("error", "") for one in found]
    assert [one.get("total") for one in found] == [None] * 4 + [1.0, 0.5, 0.25]
    assert all(f"TypeError: {NAME} returned a text, and must" in one for one in errors[:3])
    assert f"ValueError: {NAME} returned a whole number that is too large" in errors[3]


def test_the_limit_is_before_the_weight():
    assert given([1001.0], weight=0.0)[0]["error"].startswith("ValueError: the reward is 1001")
    assert given([1000.0], weight=5.0)[0]["total"] == 5000.0


def test_rewards_of_tokens():
    found = given([Score(0.0, token_rewards=[[3.0, value]]) for value in (-1000.0, -1001.0)])
    assert found[0]["total"] == 0.0
    assert f"the reward is -1001: {NAME} for a token may return" in found[1]["error"]


def test_a_pool_of_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = {"name": "length", "shape": "linear", "cost": 1, "most": 9}

    async def work(pool):
        turns = [[Turn(prompt().tokens, sampled(*[4] * count))] for count in (5, 6, 1)]
        found = await pool.score(prompt(), [episode("a", i, one) for i, one in enumerate(turns)])
        assert totals([found[0], found[2]]) == [-10.0, -2.0] and pool.replaced == 0
        said = "the reward is -6: rlax.rewards.0 (length) may return from -5 to 5"
        assert said in reason(found[1])

    with_pool(section(plugins=[], rewards=[chosen | {"weight": 2.0}], reward_limit=5.0), work)


async def test_turns_of_an_environment():
    outcome = {"text": "", "rewards": [1001.0], "ended": "done", "metrics": {}, "reward": 0.0}
    outcome |= {"ending": None}
    job = PlayJob(prompt(), Played("x"), 60.0, 1000.0)
    with pytest.raises(ValueError, match="the reward is 1001: the environment may return"):
        job.take({"outcome": outcome}, 100)
    assert job.take({"outcome": outcome | {"rewards": [1000.0]}}, 100)


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan")])
def test_the_limit_is_finite(limit):
    with pytest.raises((ConfigError, ValueError), match="reward_limit"):
        section(reward_limit=limit)
