"""``weight`` of a reward: raw parts, a weighted total, and token rewards that belong to it."""

import pytest
from reward_pools import episode, prompt, reason, sampled, section, with_pool, write_plugin

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.types import Score, Turn
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.config.validation import validate

PLUGIN = """
import numpy as np
from pydantic import Field

class Paid:
    def score(self, prompt, episode):
        tokens = tuple(np.arange(len(one.tokens)) + 0.5 for one in episode.sampled)
        return Score(3.0, metrics={"shown": 7}, token_rewards=tokens)

class TwiceConfig(Section):
    times: float = 2.0

def length(prompt, completion):
    return float("inf") if completion == "inf" else len(completion)

@hookimpl
def rlax_register_reward():
    return {
        "paid": Extension(NoOptions, lambda config, context: Paid()),
        "size": Extension(TwiceConfig, lambda config, context: length),
    }
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path, monkeypatch):
    write_plugin(tmp_path, monkeypatch, PLUGIN)


def weighted(*weights: object) -> RlaxSection:
    names = ["paid", "size", "size"]
    rewards = [{"name": n, "weight": w} for n, w in zip(names, weights, strict=True)]
    return section(rewards=rewards)


def test_parts_are_raw_and_the_total_and_token_rewards_are_weighted():
    turns = [Turn(prompt().tokens, sampled(4, 5))]

    async def work(pool):
        found, overflow = await pool.score(
            prompt(), [episode("abcd", 0, turns), episode("inf", 1, turns)]
        )
        assert isinstance(found, Score)
        assert found.parts == (3.0, 4.0, 4.0)
        assert found.total == 0.5 * 3 - 0.25 * 4 + 0 * 4
        assert found.metrics == {"shown": 7.0}
        assert [one.tolist() for one in found.token_rewards] == [[0.25, 0.75]]
        assert found.at_the_end == 0.5 - 1.0
        assert "the reward is inf: rlax.rewards.1 (size) must return" in reason(overflow)

    with_pool(weighted(0.5, -0.25, 0), work)


def test_a_scheduled_weight_is_that_of_the_step_and_its_last_value_outside_of_training():
    turns = [Turn(prompt().tokens, sampled(4, 5))]
    later = {"from": -0.5, "to": -1, "steps": 2, "shape": "step"}
    weights = ({"from": 1, "to": 0, "steps": 2}, later, 0)

    async def work(pool):
        for step, of_paid, of_size in ((1, 1, -0.5), (2, 0.5, -0.5), (3, 0, -1), (None, 0, -1)):
            (found,) = await pool.score(prompt(), [episode("abcd", 0, turns)], step=step)
            assert isinstance(found, Score)
            assert found.parts == (3.0, 4.0, 4.0)
            assert found.total == of_paid * 3 + of_size * 4
            paid = [[0.5 * of_paid, 1.5 * of_paid]] if of_paid else []
            assert [one.tolist() for one in found.token_rewards] == paid

    with_pool(weighted(*weights), work)


def test_the_weight_is_no_option_and_1_unless_given():
    rewards = weighted(2, 1, 1).rewards
    assert [str(one) for one in rewards] == ["2 * paid", "size", "size"]
    assert rewards[0].options == {}
    assert RewardChoice.model_validate(Choice(name="size", times=3)).options == {"times": 3}


def test_a_weight_is_a_finite_number():
    rewards = [{"name": "a"}, {"name": "b", "weight": float("nan")}]
    with pytest.raises(ConfigError, match="must be a finite number") as error:
        validate(RlaxSection, {"prompt_source": {"name": "x"}, "rewards": rewards}, "rlax")
    assert error.value.key == "rlax.rewards.1.weight"


@pytest.mark.parametrize("option", ["weight", "label"])
def test_a_plug_in_must_not_have_an_option_of_that_name(option, tmp_path, monkeypatch):
    (tmp_path / f"{option}_parts.py").write_text(
        PLUGIN.replace("times:", f"{option}:").join(
            ["from rlax_plugin.api import *\nfrom rlax_plugin.api import hookimpl\n", ""]
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = section(plugins=[f"{option}_parts"], rewards=[{"name": "size"}])
    with pytest.raises(PluginError, match=f"has a field '{option}', but in rlax.rewards this key"):
        registry_for(config)
