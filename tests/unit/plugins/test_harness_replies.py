"""What a program may reply to the environment ``http``, and an outage before it plays."""

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import rlax_http.environment
from rlax_http.client import Client
from rlax_http.environment import Harness, HarnessConfig
from rlax_http.failures import ServerError
from rlax_http.server import ApiKey
from sections import section_with

from rlax_plugin.api import Outcome
from rlax_plugin.testing import make_prompt

URL = "http://127.0.0.1:1/play"
CONFIG = HarnessConfig(url=URL)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    """It has a door that nobody uses, with a new key whenever it is opened."""
    keys = (f"key {number}" for number in range(9))

    @asynccontextmanager
    async def opened(access: Any) -> Any:
        access.api_key = next(keys)
        yield access
        access.closed.append(access.api_key)

    door = SimpleNamespace(open=opened)
    monkeypatch.setattr(rlax_http.environment, "EpisodeDoor", lambda *_: door)
    monkeypatch.setattr(rlax_http.environment, "_WAIT_S", 0.01)
    section = section_with(environment={"name": "http"}, rewards=[])
    return Harness(CONFIG, SimpleNamespace(section=section))  # type: ignore[arg-type]


async def outcome(harness: Harness, text: str, in_order: bool = True) -> Outcome:
    client = Client(CONFIG, URL, ApiKey(""))
    try:
        access: Any = SimpleNamespace(requests={"begun": 2}, in_order=in_order)
        return harness._outcome(client, json.loads(text), access)
    finally:
        await client.close()


async def test_a_reply_becomes_the_outcome(harness: Harness) -> None:
    found = await outcome(
        harness, '{"reward": 1, "text": "x", "ended": "cut", "metrics": {"a": 2}, "rewards": null}'
    )
    assert found == Outcome("x", (), "cut", {"requests_begun": 2.0, "a": 2.0}, 1.0)
    assert (await outcome(harness, '{"rewards": [1, 0.5]}')).rewards == (1.0, 0.5)


async def test_rewards_of_answers_in_an_order_that_nobody_knows_are_refused(
    harness: Harness,
) -> None:
    with pytest.raises(ServerError, match="order is not known"):
        await outcome(harness, '{"rewards": [1, 0.5]}', in_order=False)
    assert (await outcome(harness, '{"reward": 1, "rewards": []}', in_order=False)).reward == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "it must be an object"),
        ("{}", "neither reward nor rewards, and rlax.rewards is empty"),
        ('{"rewards": []}', "neither reward nor rewards, and rlax.rewards is empty"),
        ('{"reward": true}', "no finite number"),
        ('{"reward": NaN}', "no finite number"),
        ('{"reward": 1' + "0" * 400 + "}", "no finite number"),
        ('{"rewards": [1, "2"]}', "no list of finite numbers"),
        ('{"reward": 1, "text": 5}', "a text that is no text"),
        ('{"reward": 1, "ended": "late"}', "neither done nor cut"),
        ('{"reward": 1, "metrics": {"a": "x"}}', "metrics that are no object"),
        ('{"reward": 1, "metrics": {"requests_begun": 1}}', "'requests_begun', which is counted"),
        ('{"reward": 1, "score": 2}', "the unknown field 'score'"),
    ],
)
async def test_anything_else_leaves_the_episode_without_a_score(
    harness: Harness, text: str, said: str
) -> None:
    with pytest.raises(ServerError, match=said):
        await outcome(harness, text)


@pytest.mark.parametrize(("used", "tries"), [(False, 3), (True, 1)])
async def test_an_outage_is_waited_out_until_something_was_sampled(
    harness: Harness, used: bool, tries: int
) -> None:
    """What an earlier try has begun cannot sample with its key."""
    asked: list[Any] = []

    async def once(body: Any, limit_s: Any) -> Any:
        assert access.closed == [one["api_key"] for one in asked]
        asked.append(body)
        if len(asked) < 3:
            raise ServerError("refused", passes=True)
        return SimpleNamespace(content={"reward": 1})

    harness._client = SimpleNamespace(once=once)  # type: ignore[assignment]
    access: Any = SimpleNamespace(
        base_url="b", model="m", used=used, requests={"begun": 1}, closed=[]
    )
    playing = harness.play(make_prompt("7"), access)
    if used:
        with pytest.raises(ServerError, match="refused"):
            await playing
    else:
        assert (await playing).reward == 1.0
    assert len({one["api_key"] for one in asked}) == len(asked) == tries
    assert "reference" not in asked[0]
