"""The door of an episode: its key, what it refuses, and what becomes of requests under way."""

import asyncio
import functools
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rlax_http.environment import Harness, HarnessConfig
from sections import section_with
from small_tokenizers import byte_level

from rlax_plugin.api import ConfigError, EpisodeDoor, Tokenizer
from rlax_plugin.ports.environment import Answer, EpisodeLimit
from rlax_plugin.rollout.http import app
from rlax_plugin.rollout.http.messages import AnswerForm
from rlax_plugin.rollout.http.policy import Asked, AssistantMessage
from rlax_plugin.testing.task import CHARACTERS, Numbers, NumbersConfig, encode

HERMES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
)


class Talks(Numbers):
    def encode_messages(self, messages: Any, after: Any, tools: Any = ()) -> list[int]:
        return encode("".join(one["content"] for one in messages) + "A").tolist()


class Context:
    """Of a build, with the section and the prompt source that a door needs."""

    run_dir = Path("/runs/mine")
    section = section_with(
        environment={"name": "http"},
        rollouts={"temperature": 0.7, "max_prompt_tokens": 9},
        episodes={"max_tokens": 40},
    )

    def part(self, *_: Any) -> Talks:
        return Talks(NumbersConfig())


class Session:
    """Answers "5"; the first turn of a trajectory that begins with 9 waits for ever."""

    turns_left = tokens_left = 9

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int], int, int | None]] = []
        self.begun: list[Sequence[int]] = []
        self.limit = False
        self.hold: asyncio.Event | None = None

    async def sample(self, given: Any, trajectory: int = 0, *, most_tokens: Any = None) -> Answer:
        if self.limit:
            raise EpisodeLimit("no further turn fits")
        self.asked.append((given, trajectory, most_tokens))
        if [*given[:1]] == [11]:
            await asyncio.get_running_loop().create_future()
        if self.hold is not None:
            await self.hold.wait()
        tokens, logprobs = np.array([7, 1], np.int32), np.array([-0.5, -1.5], np.float32)
        return Answer(tokens, "5", "stop", logprobs, 3)

    async def begin(self, context: Any) -> int:
        self.begun.append(context)
        return len(self.begun)


async def ask(access: Any, path: str = "chat/completions", **body: Any) -> tuple[int, Any]:
    """Status and content of the reply to a request."""

    def send() -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {access.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{access.base_url}/{path}", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]

    return await asyncio.to_thread(send)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def door() -> EpisodeDoor:
    return EpisodeDoor(Context(), "auto", "rlax.environment.tool_calls")  # type: ignore[arg-type]


async def test_a_history_extends_its_trajectory_and_another_one_begins(door: EpisodeDoor) -> None:
    session = Session()
    async with door.open(session) as access:  # type: ignore[arg-type]
        assert not access.used and access.model == "mine"
        status, first = await ask(access, messages=[user("1")], max_tokens=2, logprobs=True)
        assert status == 200 and first["choices"][0]["message"]["content"] == "5"
        content = first["choices"][0]["logprobs"]["content"]
        assert [one["logprob"] for one in content] == [-0.5, -1.5]
        assistant = {"role": "assistant", "content": "5"}
        await ask(access, messages=[user("1"), assistant, user("2")])
        await ask(access, messages=[user("3")])
        await ask(access, "completions", prompt=[4, 5])
        assert access.used and access.requests["extended"] == 1 and access.requests["begun"] == 3
    first_given, then, other, tokens = session.asked
    assert first_given == (encode("1A").tolist(), 0, 2) and then == (encode("2A").tolist(), 0, None)
    assert other == ([], 1, None) and tokens == ([], 2, None)
    assert session.begun == [encode("3A").tolist(), [4, 5]]


async def test_a_key_opens_its_own_episode_only_and_only_until_it_is_over(
    door: EpisodeDoor,
) -> None:
    one, two = Session(), Session()
    async with door.open(one) as access, door.open(two) as other:  # type: ignore[arg-type]
        assert access.base_url == other.base_url and access.api_key != other.api_key
        await ask(access, messages=[user("1")])
        assert one.asked and not two.asked
        waiting = asyncio.ensure_future(ask(other, messages=[user("9")]))
        while not two.asked:
            await asyncio.sleep(0.01)
    status, error = await waiting
    assert status == 400 and error["message"] == "the episode is over"
    for closed in (access, other):
        status, error = await ask(closed, messages=[user("1")])
        assert status == 401 and error["code"] == "invalid_api_key"


async def test_what_the_run_decides_is_refused_with_its_key(door: EpisodeDoor) -> None:
    session = Session()
    async with door.open(session) as access:  # type: ignore[arg-type]
        said = {
            "temperature": await ask(access, messages=[user("1")], temperature=1.0),
            "top_p": await ask(access, messages=[user("1")], top_p=0.5),
            "seed": await ask(access, messages=[user("1")], seed=1),
            "stop": await ask(access, messages=[user("1")], stop=["x"]),
            "model": await ask(access, messages=[user("1")], model="theirs"),
        }
        # The thread that encodes is that of all episodes: nothing that cannot fit reaches it.
        said["messages"] = await ask(access, messages=[user("1" * 20_000)])
        said["prompt"] = await ask(access, "completions", prompt="1" * 20_000)
        assert not session.asked
        for field, (status, error) in said.items():
            assert status in (400, 404) and error["param"] == field
        assert "rlax.rollouts.temperature" in said["temperature"][1]["message"]
        assert (await ask(access, messages=[user("1")], temperature=0.7))[0] == 200
        session.limit = True
        status, error = await ask(access, messages=[user("1")])
        assert (status, error["code"]) == (400, "context_length_exceeded")
        for path, body in (
            ("chat/completions", {"messages": [user("")] * 2000}),
            ("completions", {"prompt": "1" * 99999}),
            ("completions", {"prompt": [4] * 9999}),
        ):
            status, error = await ask(access, path, **body)
            assert (status, error["code"]) == (400, "context_length_exceeded"), (path, error)
        deep = functools.reduce(lambda inner, _: [inner], range(980), [])
        status, error = await ask(access, messages=[user("1") | {"name": deep}])
        assert status == 400 and "nested" in error["message"]
        session.limit = False  # what failed is forgotten
        assert (await ask(access, messages=[user("4")]))[0] == 200


class CountingSession(Session):
    """Answers the n-th request with the n-th character; one that begins with 9 waits for ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def sample(self, given: Any, trajectory: int = 0, *, most_tokens: Any = None) -> Answer:
        self.asked.append((given, trajectory, most_tokens))
        number = len(self.asked)
        if [*(given or self.begun[trajectory - 1])][:1] == [11]:
            await self.go.wait()
        tokens, logprobs = np.array([2 + number, 1], np.int32), np.array([-number, 0], np.float32)
        return Answer(tokens, CHARACTERS[number], "stop", logprobs, 3)


async def test_choices_and_parallel_requests_are_trajectories_with_their_own_tokens(
    door: EpisodeDoor,
) -> None:
    session = CountingSession()
    async with door.open(session) as access:  # type: ignore[arg-type]
        _, reply = await ask(access, messages=[user("1")], n=3, logprobs=True)
        assert [one["index"] for one in reply["choices"]] == [0, 1, 2]
        said = [one["message"]["content"] for one in reply["choices"]]
        nats = [one["logprobs"]["content"][0]["logprob"] for one in reply["choices"]]
        assert sorted(said) == ["1", "2", "3"] and nats == [-float(one) for one in said]
        assert reply["usage"]["completion_tokens"] == 6
        one = encode("1A").tolist()
        assert session.asked == [(one, 0, None), ([], 1, None), ([], 2, None)]
        assert session.begun == [one, one]
        second = [user("1"), {"role": "assistant", "content": "2"}]  # that of trajectory 1
        held = asyncio.ensure_future(ask(access, messages=[*second, user("9")]))
        while len(session.asked) < 4:
            await asyncio.sleep(0.01)
        beside = await ask(access, messages=[*second, user("5")])
        assert beside[1]["choices"][0]["message"]["content"] == "5"
        session.go.set()
        assert (await held)[1]["choices"][0]["message"]["content"] == "4"
        assert session.asked[3:] == [(encode("9A").tolist(), 1, None), ([], 3, None)]
        assert session.begun[2:] == [[*one, 4, 1, *encode("5A").tolist()]]  # as it was sampled
        assert {kind: count for kind, count in access.requests.items() if count} == {
            **{"begun": 3, "extended": 1, "parallel": 1},
        }


async def test_of_an_episode_32_answers_may_be_under_way(door: EpisodeDoor) -> None:
    session = CountingSession()
    with ThreadPoolExecutor(32) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        async with door.open(session) as access:  # type: ignore[arg-type]
            texts = [f"9{character}" for character in CHARACTERS[:31]]
            held = [asyncio.ensure_future(ask(access, messages=[user(text)])) for text in texts]
            while len(session.asked) < len(held):
                await asyncio.sleep(0.01)
            status, error = await ask(access, messages=[user("1")], n=2)
            assert (status, error["type"]) == (429, "rate_limit_error")
            assert (await ask(access, messages=[user("1")]))[0] == 200  # the 32nd
            session.go.set()
            replies = [reply["choices"][0]["message"] for _, reply in await asyncio.gather(*held)]
    assert {reply["content"] for reply in replies} == {*CHARACTERS[1:32]}
    assert [trajectory for _, trajectory, _ in session.asked] == [*range(32)]


async def test_the_order_of_answers_is_known_if_they_came_one_by_one(door: EpisodeDoor) -> None:
    async with door.open(Session()) as access:  # type: ignore[arg-type]
        for text in ("1", "2"):
            await ask(access, messages=[user(text)])
        assert access.in_order
        await ask(access, messages=[user("3")], n=2)
        assert not access.in_order
    async with door.open(session := Session()) as access:  # type: ignore[arg-type]
        session.hold = asyncio.Event()
        policy, asked = access._policy, Asked((user("1"),))
        going = asyncio.ensure_future(policy.answer(asked, None))
        while not session.asked:
            await asyncio.sleep(0.01)
        going.cancel()
        await asyncio.wait([going])
        session.hold.set()
        while policy._sampling:
            await asyncio.sleep(0.01)
        assert not access.in_order  # it is a turn that no client has got
        await policy.answer(asked, None)
        assert access.in_order and len(session.asked) == 1


async def test_an_answer_that_cannot_be_read_ends_its_trajectory(
    door: EpisodeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer has recorded it, so its trajectory is not what the program knows."""

    def fails(*_: Any) -> AssistantMessage:
        raise RuntimeError("no text")

    async with door.open(session := Session()) as access:  # type: ignore[arg-type]
        policy, first = access._policy, user("1")
        await policy.answer(Asked((first,)), None)
        asked = Asked((first, {"role": "assistant", "content": "5"}, user("2")))
        with monkeypatch.context() as patch:
            patch.setattr(AnswerForm, "message", fails)
            with pytest.raises(RuntimeError):
                await policy.answer(asked, None)
        await policy.answer(asked, None)
        assert [trajectory for _, trajectory, _ in session.asked] == [0, 0, 1]
        assert not access.in_order


async def test_at_most_32_answers_are_under_way_and_a_retry_needs_no_room(
    door: EpisodeDoor,
) -> None:
    async with door.open(session := Session()) as access:  # type: ignore[arg-type]
        status, error = await ask(access, messages=[user("1")], n=33)
        assert (status, error["param"]) == (400, "n") and "at most 32" in error["message"]
        session.hold = asyncio.Event()
        policy, first = access._policy, Asked((user("1"),), n=32)
        waiting = [asyncio.ensure_future(policy.answer(first, None))]
        while len(session.asked) < 32:
            await asyncio.sleep(0.01)
        status, error = await ask(access, messages=[user("2")])
        assert (status, error["type"]) == (429, "rate_limit_error")
        waiting.append(asyncio.ensure_future(policy.answer(replace(first, retry=1), None)))
        while access.requests["retried"] < 32:
            await asyncio.sleep(0.01)
        session.hold.set()
        one, again = await asyncio.gather(*waiting)
        assert one == again and len(one.choices) == len(session.asked) == 32
        assert access.requests["begun"] == 32


async def test_a_request_that_others_leave_no_room_for_is_not_the_programs_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doors, made = [], app.HttpDoor
    monkeypatch.setattr(app, "MOST_HELD_BYTES", 400_000)  # 100,000 of them for one episode
    monkeypatch.setattr(app, "HttpDoor", lambda *a, **k: doors.append(made(*a, **k)) or doors[0])
    door = EpisodeDoor(Context(), "auto", "rlax.environment.tool_calls")  # type: ignore[arg-type]
    large = {"messages": [user("1") | {"name": "n" * 80_000}]}
    async with AsyncExitStack() as stack:
        sessions = [Session() for _ in range(5)]
        mine, *others = [await stack.enter_async_context(door.open(one)) for one in sessions]  # type: ignore[arg-type]
        assert (await ask(mine, messages=[user("n" * 110_000)]))[0] == 429
        assert not mine.failed  # it took too much itself
        for access in others:
            url = urllib.parse.urlsplit(access.base_url)
            client = stack.enter_context(socket.create_connection((url.hostname, url.port)))
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
            head += f"Bearer {access.api_key}\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: 99000\r\n\r\n".encode() + b" " * 90_000)
        async with asyncio.timeout(60):
            while doors[0].held.total() < 360_000:
                await asyncio.sleep(0.02)
        assert (await ask(mine, **large))[0] == 429
        assert mine.failed and not any(access.failed for access in others)


async def test_a_temperature_is_refused_where_that_of_evaluations_differs() -> None:
    class Measured(Context):
        section = section_with(environment={"name": "http"}, evaluation={"temperature": 0.0})

    door = EpisodeDoor(Measured(), "auto", "rlax.environment.tool_calls")  # type: ignore[arg-type]
    async with door.open(Session()) as access:  # type: ignore[arg-type]
        for temperature in (0.0, 1.0):
            status, error = await ask(access, messages=[user("1")], temperature=temperature)
            assert status == 400 and "rlax.evaluation.temperature differs" in error["message"]
        assert (await ask(access, messages=[user("1")]))[0] == 200


async def test_a_form_that_the_template_does_not_write_is_found_before_an_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Any] = []

    class Templates(Context):
        section = section_with(environment={"name": "http"}, rewards=[])

        def part(self, *_: Any) -> Any:
            tokenizer = Tokenizer.load(byte_level(tmp_path, template=HERMES), "k")
            built.append(SimpleNamespace(tokenizer=tokenizer))
            return built[-1]

    context: Any = Templates()
    for calls in ("auto", "hermes"):
        Harness(HarnessConfig(url="http://127.0.0.1:1/", tool_calls=calls), context)
    assert len(built) == 1  # auto waits for the first episode
    with pytest.raises(
        ConfigError, match=r"rlax\.environment\.tool_calls.*writes a call otherwise"
    ):
        Harness(HarnessConfig(url="http://127.0.0.1:1/", tool_calls="llama3"), context)
