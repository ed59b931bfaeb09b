"""``format`` and ``length``."""

from pathlib import Path

import pytest
import rlax_rewards
from plugin_parts import built
from reward_pools import episode, prompt, sampled
from rlax_rewards import LengthConfig
from sections import section_with
from test_rewards_text import MEGABYTE, asked

from rlax_plugin.api import BuildContext, ConfigError
from rlax_plugin.base.types import Turn
from rlax_plugin.build import registry_of
from rlax_plugin.config import RewardChoice

TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
PATTERN = r"(?s)<think>.*</think>\s*<answer>.*</answer>"
RIGHT = "<think>\nwhy\n</think>\n<answer>42</answer>"


def score(completion: str, **options: object) -> float:
    return built(rlax_rewards, "reward", "format", **options)(asked(""), completion)


@pytest.mark.parametrize(
    ("completion", "options", "reward"),
    [
        (RIGHT, {}, 1.0),
        (RIGHT + " so", {}, 0.0),
        (RIGHT + " so", {"match": "search"}, 1.0),
        (RIGHT * 3, {}, 1.0),
        (RIGHT * 3, {"once": TAGS}, 0.0),
        (RIGHT, {"once": TAGS}, 1.0),
        (RIGHT.replace("why", "<think>"), {"once": TAGS}, 0.0),
        (RIGHT.replace("why", "\ud800\x00\u200f"), {"once": TAGS}, 1.0),
        (RIGHT.replace("why", "w" * MEGABYTE), {"once": TAGS}, 1.0),
        (RIGHT * (MEGABYTE // len(RIGHT)), {"once": TAGS}, 0.0),
        ("<think>" * (MEGABYTE // 7), {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_format(completion, options, reward):
    assert score(completion, pattern=PATTERN, **options) == reward


def test_a_pattern_that_backtracks_without_end_does_not_match(capsys):
    reward = built(rlax_rewards, "reward", "format", pattern=r"(x|xx)+", timeout_s=0.2)
    assert [reward(asked(""), text) for text in ("xx", "x" * 60 + "y", "y")] == [1.0, 0.0, 0.0]
    assert capsys.readouterr().err.count("took longer than timeout_s = 0.2 s") == 1


def test_a_broken_pattern_is_found_with_its_place():
    with pytest.raises(ConfigError, match="must be a regular expression") as error:
        choice = RewardChoice.model_validate({"name": "format", "pattern": "(a"})
        registry_of(()).options("reward", choice, "rlax.rewards.0")
    assert error.value.key == "rlax.rewards.0.pattern"


def length(**options: object):
    context = BuildContext(Path(), 0, section_with(rollouts={"max_new_tokens": 100}))
    return rlax_rewards.rlax_register_reward()["length"].build(LengthConfig(**options), context)


@pytest.mark.parametrize(
    ("tokens", "options", "reward"),
    [
        (80, {}, 0.0),
        (81, {}, -1 / 20),
        (90, {}, -0.5),
        (100, {}, -1.0),
        (101, {}, -1.0),
        (90, {"buffer": 100}, -0.9),
        (20479, {"max": 20480, "buffer": 4096}, -4095 / 4096),
        (16384, {"max": 20480, "buffer": 4096}, 0.0),
        (30, {"shape": "linear"}, -0.03),
        (30, {"shape": "linear", "free": 30}, 0.0),
        (40, {"shape": "linear", "free": 30, "cost": 0.5, "most": 3}, -3.0),
    ],
)
def test_length_in_tokens(tokens, options, reward):
    one = episode("ab", 0, [Turn(prompt().tokens, sampled(*[4] * tokens))])
    assert length(**options).score(prompt(), one) == pytest.approx(reward, abs=1e-12)


def test_length_over_turns():
    turns = [Turn(prompt().tokens, sampled(4, 5)), Turn(prompt().tokens, sampled(*[4] * 88))]
    assert length().score(prompt(), episode("a", 0, turns)) == -0.5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max": 10, "buffer": 11}, "must not exceed max = 10"),
        ({"buffer": 101}, "must not exceed max = 100"),
    ],
)
def test_lengths_that_do_not_fit(options, said):
    with pytest.raises(ConfigError, match=said):
        length(**options)
