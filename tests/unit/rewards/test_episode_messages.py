"""Messages of a reward process about an episode that are none; test_played_episodes forges some."""

from __future__ import annotations

import asyncio
import json

import pytest
from played import Played
from reward_pools import prompt

from rlax_plugin.rewards.episodes import PlayCounts, PlayJob

MESSAGES = [
    '{"job": 1, "outcome": {"text": "", "rewards": [1e999], "ended": "cut", "metrics": {}}}',
    '{"job": 1, "outcome": {"text": 7, "rewards": [], "ended": "done", "metrics": {}}}',
    '{"job": 1, "outcome": {"text": "", "rewards": [1, 2], "ended": "done", "metrics": {}}}',
    '{"job": 1, "outcome": {"text": "", "rewards": [], "ended": "late", "metrics": {}}}',
    '{"job": 1, "call": 1, "sample": {"tokens": "?"}, "trajectory": 0}',
    '{"job": 1, "call": 1, "sample": {"messages": [1]}, "trajectory": 0}',
    '{"job": 1, "call": 1, "begin": ' + '"' + "x" * (1 << 20) + '"}',
]


@pytest.mark.parametrize("line", MESSAGES, ids=range(len(MESSAGES)))
def test_a_message_that_is_none_is_rejected(line):
    async def main():
        job = PlayJob(prompt(), Played("x"), 60.0, PlayCounts())
        with pytest.raises((ValueError, TypeError, AttributeError)):
            job.take(json.loads(line), len(line))
        assert not job.result.done()

    asyncio.run(main())
