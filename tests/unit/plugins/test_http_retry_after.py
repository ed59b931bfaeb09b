"""A ``Retry-After``: the server is left alone, but one answer does not stop all other requests."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import rlax_http.client
import rlax_http.rate_limits
from hostile_server import Asked, serving
from rlax_http.client import Client
from rlax_http.failures import ServerError, retry_after_s
from rlax_http.rate_limits import Pause
from rlax_http.server import ApiKey, ServerConfig

LONG_S = 60.0  # more than any test takes


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(rlax_http.client, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(rlax_http.rate_limits, "_FIRST_PROBE_S", 0.05)


def with_client(url: str, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        client = Client(ServerConfig(), url, ApiKey(""))
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(main())


_IN_AN_HOUR = email.utils.formatdate(time.time() + 3600)
_CASES = {
    "an hour": (429, "3600"),
    "an hour, unavailable": (503, "3600"),
    "the end of time": (429, "Fri, 31 Dec 9999 23:59:59 GMT"),
    "longer": (429, "9" * 400),
    "negative": (429, "-3600"),
    "garbage": (429, "soon, my friend"),
}


@pytest.mark.parametrize("status, header", _CASES.values(), ids=_CASES)
def test_one_request_that_is_told_to_wait_does_not_stop_the_others(status, header):
    told = asyncio.Event()

    def answer(asked: Asked) -> None:
        if asked.body == "bad":
            asked.reply(b"", status, Retry_After=header)
            loop.call_soon_threadsafe(told.set)
        else:
            asked.json(asked.body)

    async def work(client: Client) -> list[Any]:
        nonlocal loop
        loop = asyncio.get_running_loop()
        bad = asyncio.create_task(client.post("bad", LONG_S))
        await told.wait()
        found = [(await client.post(i, LONG_S)).content for i in range(5)]
        bad.cancel()
        return found

    loop: Any = None
    with serving(answer) as server:
        assert with_client(server.url, work) == list(range(5))


@pytest.mark.parametrize("header", ["3600", _IN_AN_HOUR, "9" * 12], ids=["s", "date", "long"])
def test_a_request_that_is_told_to_wait_too_long_is_tried_again_before_it_fails(header):
    async def work(client: Client) -> None:
        with pytest.raises(ServerError) as found:
            await client.post({}, 0.6)
        assert found.value.passes
        assert "replied 429" in str(found.value) and "gave no answer within" in str(found.value)

    with serving(lambda asked: asked.reply(b"", 429, Retry_After=header)) as server:
        with_client(server.url, work)
    assert 2 <= len(server.asked) <= 8  # at half of the time that is left, not all the time


def test_a_server_that_asks_for_a_pause_gets_few_requests_meanwhile():
    count = 16

    async def work(client: Client) -> None:
        asked = (client.post({}, 1.0) for _ in range(count))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, ServerError) for one in found)

    with serving(lambda asked: asked.reply(b"", 429, Retry_After="3600")) as server:
        with_client(server.url, work)
    # Each once, as they began together; then probes.
    assert count < len(server.asked) <= count + 6


def test_a_request_that_is_told_to_wait_does_so():
    async def work(client: Client) -> float:
        begun_s = time.monotonic()
        await client.post({}, LONG_S)
        return time.monotonic() - begun_s

    busy = [lambda asked: asked.reply(b"", 500, Retry_After="1"), lambda asked: asked.json(1)]
    with serving(*busy) as server:
        assert with_client(server.url, work) >= 1.0


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_short_pause_is_kept_to_its_end(monkeypatch):
    monkeypatch.setattr(rlax_http.rate_limits, "_FIRST_PROBE_S", 1.0)
    clock = Clock()
    pause = Pause(clock)
    assert pause.wait_s() == 0.0
    pause.begin(0.5)
    assert pause.wait_s() == 0.5
    clock.now += 0.5
    assert pause.wait_s() == 0.0 and pause.wait_s() == 0.0


def test_probes_become_rare_and_a_pause_has_an_end(monkeypatch):
    monkeypatch.setattr(rlax_http.rate_limits, "_FIRST_PROBE_S", 1.0)
    clock = Clock()
    pause = Pause(clock)
    pause.begin(1e30)
    probes = []
    while (left_s := pause.wait_s()) or clock.now < 400.0:
        if not left_s:
            probes.append(clock.now - 100.0)
        clock.now += left_s
    assert probes[:6] == [1.0, 3.0, 7.0, 15.0, 23.0, 31.0]  # one at a time
    assert clock.now == 400.0  # five minutes, not 1e30 seconds


def test_only_an_answer_to_a_request_that_was_sent_in_the_pause_ends_it():
    clock = Clock()
    pause = Pause(clock)
    pause.begin(60.0)
    assert not pause.answered(sent_s=99.0) and pause.wait_s() > 0
    clock.now = 110.0
    pause.begin(60.0)  # a probe was told so
    assert not pause.answered(sent_s=105.0)
    assert pause.answered(sent_s=115.0) and pause.wait_s() == 0.0
    assert not pause.answered(sent_s=116.0)  # there is none


@pytest.mark.parametrize(
    "header, seconds",
    [
        ("3", 3.0),
        (" 10 ", 10.0),
        ("-3", None),
        ("1e9", None),
        ("soon", None),
        ("", None),
        ("\u0663", None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        ("Sun, 09 Sep 2001 01:47:40 GMT", 60.0),
        ("Sun, 99 Sep 2001 01:47:40 GMT", None),
        ("9" * 400, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after_s(header, lambda: 1_000_000_000.0) == seconds
