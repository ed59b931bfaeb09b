"""Messages of a reward process about an episode that are none; test_played_episodes forges some."""

import json

import pytest
from played import Played
from reward_pools import prompt

from rlax_plugin.reward.scoring import PlayJob

OUTCOME = {"text": "", "rewards": [], "ended": "done", "metrics": {}, "reward": 0.0}
QUESTION = {"call": 1, "trajectory": 0}
# What each says -> the error, and what must stand in it.
MESSAGES = {
    "infinite reward": (
        {"outcome": OUTCOME | {"rewards": [1e999]}},
        ValueError,
        "must return a finite number",
    ),
    "no text": ({"outcome": OUTCOME | {"text": 7}}, TypeError, "is no text"),
    "long text": (
        {"outcome": OUTCOME | {"text": "x" * ((1 << 20) + 1)}},
        ValueError,
        "has 1048577 characters",
    ),
    "another end": ({"outcome": OUTCOME | {"ended": "late"}}, ValueError, "neither done nor cut"),
    "no metrics": ({"outcome": OUTCOME | {"metrics": [1]}}, TypeError, "metrics are a list"),
    "no ending": ({"error": "x"}, KeyError, "ending"),
    "a policy's ending": ({"error": "x", "ending": "crashed"}, ValueError, "an error with"),
    "no end": ({"outcome": {"text": "", "rewards": []}}, KeyError, "ended"),
    "no tokens": (QUESTION | {"sample": {"tokens": "?"}}, ValueError, "base64"),
    "no messages": (QUESTION | {"sample": {"messages": [1]}}, ValueError, "these are no messages"),
    "too large": (QUESTION | {"begin": "x" * (1 << 20)}, ValueError, "too much"),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_that_is_none_is_rejected(name):
    message, error, words = MESSAGES[name]
    line = json.dumps({"job": 1, **message})

    job = PlayJob(prompt(), Played("x"), 60.0)
    with pytest.raises(error, match=words):
        job.take(json.loads(line), len(line))
    assert not job.result.done()
