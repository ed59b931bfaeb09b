"""The HTTP door, asked over loopback by clients good and bad; the engine is a scripted one."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_doors import CHAT, KEY, LIMIT_S, STOP, Letters, Served, serving
from small_tokenizers import END, START, TEXT_END, byte_level
from waiting import wait_until

from rlax_plugin.base.tokens.rendering import DEFAULT_LIMITS
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.data.prompts.text_source import TextSource
from rlax_plugin.rollout.http import app
from rlax_plugin.rollout.http.policy import Refused
from rlax_plugin.rollout.http.wire import wanted
from rlax_plugin.rpc.transport.http import Limits


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_chat_is_answered_with_what_the_engine_sampled(served: Served) -> None:
    body = CHAT | {"n": 2, "seed": 8, "logprobs": True, "temperature": 0.5, "top_p": 0.9}
    status, found = served.asked("/v1/chat/completions", body)
    assert status == 200 and found["object"] == "chat.completion" and found["model"] == "m"
    assert found["system_fingerprint"] == "weights-7"
    assert [c["message"]["content"] for c in found["choices"]] == ["ab>8", "ab>9"]
    assert [c["finish_reason"] for c in found["choices"]] == ["stop", "stop"]
    first = found["choices"][0]["logprobs"]["content"]
    assert [(p["token"], p["logprob"], p["bytes"]) for p in first[:2]] == [
        ("a", -97.0, [97]),
        ("b", -98.0, [98]),
    ]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13}
    request = served.engine.requests[-1]
    assert request.context.tolist() == [97, 98, 62] and request.seeds == (8, 9)
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert request.sampling.stop_ids == (STOP,) and request.sampling.max_new_tokens == 40


def test_a_stream_says_the_same_as_the_whole_answer(served: Served) -> None:
    asked = CHAT | {"n": 2, "seed": 41, "logprobs": True, "return_token_ids": True}
    _, whole = served.asked("/v1/chat/completions", asked)
    events = served.streamed(
        "/v1/chat/completions", asked | {"stream_options": {"include_usage": True}}
    )
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"]
    assert len(events) > 6  # it came as it was sampled
    for event in (e for e in events if not e["choices"] or e["choices"][0]["finish_reason"]):
        assert event["system_fingerprint"] == whole["system_fingerprint"] == "weights-7"
        assert event["prompt_token_ids"] == whole["prompt_token_ids"] == [97, 98, 62]
    for index, choice in enumerate(whole["choices"]):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [t for c in mine for t in c["token_ids"]] == choice["token_ids"]
        told = [p for c in mine if c["logprobs"] for p in c["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]


HERMES = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>\
{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{{ c.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_a_long_stream_is_decoded_less_often_than_it_grows() -> None:
    class Counting(Letters):
        decoded = 0

        def decode(self, tokens: Any) -> str:
            self.decoded += len(tokens)
            return super().decode(tokens)

    source = Counting()
    with serving(source=lambda: source) as served:
        served.engine.says = [*b"ab" * 90, STOP]
        events = served.streamed("/v1/chat/completions", CHAT)
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert text == "ab" * 90
        assert source.decoded < 20 * 181  # every time it grew, 181 * 180 / 2


def test_calls_of_tools_come_out_and_go_in_again(tmp_path: Path) -> None:
    directory = byte_level(tmp_path, special=(END, START, TEXT_END), template=HERMES)
    tokenizer = Tokenizer.load(str(directory), "tokenizer_path", {}, DEFAULT_LIMITS)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    with serving(source=lambda: TextSource(tokenizer, chat=True)) as served:
        served.engine.says = [*tokenizer.encode_behind(f"well {call}"), tokenizer.eos_id]
        asked = CHAT | {"tools": TOOLS}
        status, found = served.asked("/v1/chat/completions", asked)
        (choice,) = found["choices"]
        message = choice["message"]
        assert status == 200 and choice["finish_reason"] == "tool_calls"
        assert message["content"] == "well"
        (made,) = message["tool_calls"]
        assert made["function"] == {"name": "add", "arguments": '{"a": 1}'}
        (event,) = served.streamed("/v1/chat/completions", asked)  # calls come as a whole
        (streamed,) = event["choices"][0]["delta"]["tool_calls"]
        assert streamed["index"] == 0 and streamed["function"] == made["function"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": "2"}
        history = [*CHAT["messages"], message, result]
        assert served.asked("/v1/chat/completions", asked | {"messages": history})[0] == 200
        rendered = tokenizer.decode(served.engine.requests[-1].context, special=True)
        assert call in rendered and rendered.startswith(json.dumps(TOOLS))


def test_a_stream_keeps_the_marks_of_a_chat_that_are_special_tokens(tmp_path: Path) -> None:
    special = (END, START, TEXT_END, "<tool_call>")
    directory = byte_level(tmp_path, special=special, template=HERMES)
    tokenizer = Tokenizer.load(str(directory), "tokenizer_path", {}, DEFAULT_LIMITS)
    with serving(source=lambda: TextSource(tokenizer, chat=True)) as served:
        mark, words = tokenizer.special_id("<tool_call>"), tokenizer.encode_behind("well, no")
        served.engine.says = [*words, mark, *words, tokenizer.eos_id]
        events = served.streamed("/v1/chat/completions", CHAT)  # without tools
        parts = [event["choices"][0]["delta"].get("content", "") for event in events]
        assert len(parts) > 3 and "".join(parts) == "well, no<tool_call>well, no"


def test_completions_of_several_prompts_and_forms(served: Served) -> None:
    body = {"model": "m", "prompt": ["ab", "c"], "seed": 5, "logprobs": 0, "max_tokens": 2}
    status, found = served.asked("/v1/completions", body)
    assert status == 200, found
    assert [(c["index"], c["text"], c["finish_reason"]) for c in found["choices"]] == [
        (0, "ab", "length"),
        (1, "c5", "length"),
    ]
    assert found["choices"][1]["logprobs"] == {
        "tokens": ["c", "5"],
        "token_logprobs": [-99.0, -53.0],
        "top_logprobs": None,
        "text_offset": [0, 1],
    }
    body |= {"prompt": [[97], [98, 99]], "return_tokens_as_token_ids": True}
    _, found = served.asked("/v1/completions", body)
    assert [c["logprobs"]["tokens"] for c in found["choices"]] == [
        ["token_id:97", "token_id:53"],
        ["token_id:98", "token_id:99"],
    ]
    parts = served.streamed("/v1/completions", body | {"return_token_ids": True})
    ends = [p["choices"][0] for p in parts if p["choices"][0]["finish_reason"]]
    assert [end["prompt_token_ids"] for end in ends] == [[97], [98, 99]]
    assert "".join(p["choices"][0]["text"] for p in parts if p["choices"][0]["index"]) == "bc"


def test_tokens_in_and_tokens_out(served: Served) -> None:
    sampling = {"max_tokens": 3, "seed": 6, "logprobs": 1, "skip_special_tokens": False}
    body = {"model": "m", "token_ids": [97, 98], "sampling_params": sampling}
    status, found = served.asked("/inference/v1/generate", body)
    (choice,) = found["choices"]
    assert status == 200 and choice["token_ids"] == [97, 98, 54]
    assert found["prompt_token_ids"] == [97, 98] and choice["finish_reason"] == "length"
    assert [p["token"] for p in choice["logprobs"]["content"]] == [
        "token_id:97",
        "token_id:98",
        "token_id:54",
    ]
    assert served.asked("/tokenize", CHAT)[1] == {
        "count": 3,
        "max_model_len": 56,
        "tokens": [97, 98, 62],
    }
    assert served.asked("/tokenize", {"prompt": "c"})[1]["tokens"] == [99]
    (model,) = served.asked("/v1/models")[1]["data"]
    assert (model["id"], model["max_model_len"]) == ("m", 56)


def test_a_stop_string_ends_the_text_before_it_also_in_a_stream(served: Served) -> None:
    body = CHAT | {"seed": 1234, "stop": ["34", "zz"]}
    _, found = served.asked("/v1/chat/completions", body)
    assert found["choices"][0]["message"]["content"] == "ab>12"
    assert served.engine.requests[-1].sampling.stop_strings == ("34", "zz")
    parts = [e["choices"][0]["delta"] for e in served.streamed("/v1/chat/completions", body)]
    assert "".join(part.get("content", "") for part in parts) == "ab>12"


def test_a_stop_token_of_the_request_is_no_text_also_in_a_stream() -> None:
    with serving() as served:
        served.engine.says = [*b"ok;"]
        for path, asked in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": "ab"}),
        ):
            asked = asked | {"stop_token_ids": [ord(";")], "return_token_ids": True}
            for choice in served.asked(path, asked)[1]["choices"]:
                assert choice.get("text", choice.get("message", {}).get("content")) == "ok"
                assert choice["token_ids"] == [*b"ok;"]
            parts = [event["choices"][0] for event in served.streamed(path, asked)]
            texts = [part.get("text", part.get("delta", {}).get("content")) for part in parts]
            assert "".join(texts) == "ok"


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"top_logprobs": 2, "logprobs": True}, "top_logprobs", "only the log-prob of the sampled"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "only 0 is"),
        ({"frequency_penalty": False}, "frequency_penalty", "only 0 is"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"speed": 5}, "speed", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", 'only "auto"'),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"n": True}, "n", "a whole number"),
        ({"n": 128}, "n", "n: 128 samples, must be 1 to"),
        ({"seed": -1}, "seed", "from 0"),
        ({"temperature": 10**400}, "temperature", "must be from 0"),
        ({"temperature": 0.0001}, "temperature", "must be 0 or from 0.001"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"stop": [""]}, "stop", "1 to 256 characters"),
        ({"stream_options": {}, "stream": False}, "stream_options", "stream = true"),
        ({"max_tokens": 41}, "max_tokens", "rlax.rollouts.max_new_tokens is 40"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens", "differs"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [5]}, "messages[0]", "must be an object"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text"),
        ({"messages": [{"role": "user", "content": "\xe9"}]}, "messages", "not ASCII"),
        ({"messages": [{"role": "user", "content": "a" * 16}]}, "messages", "17 prompt tokens"),
        ({"messages": [{"role": "user", "content": "a" * 99999}]}, "messages", "characters"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "type text",
        ),
        ({"model": "other"}, "model", "it is 'm'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_refused_by_its_name(
    served: Served, change: dict[str, Any], param: str | None, said: str, stream: bool
) -> None:
    before = len(served.engine.requests)
    status, found = served.asked("/v1/chat/completions", CHAT | {"stream": stream} | change)
    assert status == (404 if param == "model" else 400)
    assert said in found["error"]["message"] and found["error"]["param"] == param
    if param == "messages" and ("tokens" in said or "characters" in said):
        assert found["error"]["code"] == "context_length_exceeded"
    assert len(served.engine.requests) == before


def test_fields_that_change_nothing_are_taken(served: Served) -> None:
    nothing = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": None,
        "response_format": {"type": "text"},
        "top_k": -1,
        "min_p": 0,
        "top_logprobs": 0,
        "parallel_tool_calls": True,
        "tool_choice": "none",
    }
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts, "refusal": None, "annotations": []}]
    status, found = served.asked(
        "/v1/chat/completions", CHAT | nothing | {"messages": messages, "seed": 3}
    )
    assert status == 200 and found["choices"][0]["message"]["content"] == "a\nb>3"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be an object"),
        (b'{"n": NaN}', "NaN"),
        (b'{"tools": [-1e999]}', "-1e999 is too large"),
        (b'{"n": 1, "n": 2}', "twice"),
        (b'{"n": "\\ud800"}', "not valid JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "not valid JSON"),
        ('{"n": "\\ud800"}'.encode("utf-16"), "not valid JSON"),
    ],
)
def test_a_body_that_is_no_json_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        wanted("chat", body, "m")
    assert caught.value.status == 400


def test_a_pair_of_surrogates_is_a_character() -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}'
    (asked,) = wanted("chat", body, "m").asked
    assert asked.given == ({"role": "user", "content": "\U0001f600"},)


@pytest.mark.parametrize("key", [None, "", "other", f"{KEY}x", "\xfc"])
def test_a_wrong_key_opens_nothing(served: Served, key: str | None) -> None:
    for path, body in (("/v1/models", None), ("/v1/chat/completions", CHAT), ("/nothing", None)):
        status, found = served.asked(path, body, key)
        assert status == 401 and found["error"]["code"] == "invalid_api_key"


def test_a_server_without_keys_answers_no_page_in_a_browser() -> None:
    with serving(needs_key=False) as served:
        assert served.asked("/v1/models", key="anything")[0] == 200
        assert served.asked("/v1/models", key=None, Origin="http://evil.example")[0] == 403
        # A name of the page's own that resolves to 127.0.0.1: it needs no Origin.
        assert served.asked("/v1/models", key=None, Host="evil.example:80")[0] == 403
        assert served.asked("/v1/models", key=None, Host="localhost:80")[0] == 200
        plain = {"Content-Type": "text/plain"}  # which a page may send without asking first
        assert served.asked("/v1/chat/completions", CHAT, None, **plain)[0] == 415


def test_paths_methods_and_bodies_have_limits(served: Served, monkeypatch: Any) -> None:
    monkeypatch.setattr(app, "MOST_BYTES", 1000)
    assert served.asked("/v1/nothing")[0] == 404
    assert served.asked("/v1/chat/completions")[0] == 405
    assert served.asked("/v1/chat/completions", b"x" * 1001)[0] == 413
    packed = {"Content-Encoding": "gzip"}
    assert served.asked("/v1/chat/completions", CHAT, **packed)[0] == 415
    head = f"POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    with served.connected() as client:
        client.sendall(head.encode() + b"\r\n" + 3 * (b"200\r\n" + 512 * b" " + b"\r\n"))
        assert client.recv(12) == b"HTTP/1.1 413"
    smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
    models = head.replace("POST /tokenize", "GET /v1/models")
    for heads in (
        head + "Content-Length: 5\r\n",
        head + "content-length: 5\r\nContent-Length: 6\r\n",
        models + "Content-Length: 5\r\n",
        head + 2 * "X-Stainless-Retry-Count: 1\r\n",
        models.replace("1.1", "1.0") + "Connection: keep-alive\r\n",
    ):
        with served.connected() as client:
            client.sendall((heads + "\r\n").encode() + smuggled)
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


def test_large_bodies_have_a_limit_together_and_delay_no_small_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MOST_HELD_BYTES", 150_000)
    head = f"POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 90000\r\n\r\n"
    large = CHAT | {"user": "u" * 80_000}
    with served.connected() as client:
        client.sendall(head.encode() + b" " * 80_000)
        wait_until(lambda: served.door.held.total() == 80_000, "the body is not received")
        assert served.asked("/v1/chat/completions", large)[0] == 429
        assert served.asked("/v1/chat/completions", CHAT)[0] == 200
    wait_until(lambda: not served.door.held, "the body is still held")
    begun, go = threading.Event(), threading.Event()

    def slow(kind: Any, body: bytes, *rest: Any) -> Any:
        if len(body) > 80_000:
            begun.set()
            assert go.wait(LIMIT_S)
        return wanted(kind, body, *rest)

    monkeypatch.setattr(app.wire, "wanted", slow)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(served.asked, "/v1/chat/completions", large)
        assert begun.wait(LIMIT_S)
        assert served.asked("/v1/chat/completions", CHAT)[0] == 200
        go.set()
        assert waiting.result(LIMIT_S)[0] == 200


def test_a_connection_serves_one_request_after_the_other(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=LIMIT_S)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    sockets = set()
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
        sockets.add(connection.sock.getsockname())
        assert connection.getresponse().read().startswith(b'{"id":"chatcmpl-')
    connection.close()
    assert len(sockets) == 1


def test_a_client_that_goes_ends_its_samples() -> None:
    with serving() as served:
        served.engine.go.clear()
        body = json.dumps(CHAT | {"stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with served.connected() as client:
            client.sendall(head.encode() + body)
            wait_until(lambda: served.engine.requests, "no request reached the engine")
            assert client.recv(12) == b"HTTP/1.1 200" and not served.engine.ended
        wait_until(lambda: served.engine.ended, "its samples go on")
        wait_until(lambda: not served.door.answering, "the request is still open")
        assert served.counted == [("/v1/chat/completions", "CANCELLED")]


def test_a_failure_of_the_server_is_counted_logged_and_said_in_openais_form(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Letters):
        failing = True

        def decode(self, tokens: Any) -> str:
            if self.failing and len(tokens) > 2:
                raise KeyError("no such letter")
            return super().decode(tokens)

    path, source = "/v1/chat/completions", Failing()
    with serving(source=lambda: source) as served:
        status, found = served.asked(path, CHAT)
        assert (status, found["error"]["type"]) == (500, "server_error")
        assert "no such letter" in caplog.text and "no such letter" not in str(found)
        _, text = served.asked(path, CHAT | {"stream": True})
        *_, last = text.decode().removesuffix("\n\n").split("\n\n")
        assert json.loads(last.removeprefix("data: ")) == found  # behind what was sent before
        source.failing = False
        assert served.asked(path, CHAT)[0] == 200
        wait_until(lambda: len(served.counted) == 3, "not all were counted")
        assert [code for _, code in served.counted] == ["500", "200", "200"]


def test_a_slow_body_and_a_slow_answer_end_with_their_connection() -> None:
    with serving(limits=Limits(connection_s=0.2, answer_s=0.5)) as served:
        served.engine.go.clear()
        head = f"POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        with served.connected() as client:
            client.sendall(head.encode())
            assert client.recv(1) == b""
        with pytest.raises((http.client.HTTPException, OSError)):
            served.asked("/v1/chat/completions", CHAT)
        wait_until(lambda: served.engine.ended, "its samples go on")


def test_a_hundred_clients_get_their_own_answers() -> None:
    with serving() as served, ThreadPoolExecutor(100) as clients:
        found = clients.map(
            lambda i: served.asked("/v1/chat/completions", CHAT | {"seed": i}), range(100)
        )
        texts = [answer["choices"][0]["message"]["content"] for _, answer in found]
        assert texts == [f"ab>{i}" for i in range(100)]
        wait_until(lambda: len(served.counted) == 100, "not all were counted")
        assert set(served.counted) == {("/v1/chat/completions", "200")}


def test_a_full_queue_is_refused_and_may_be_asked_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("rlax_plugin.rollout.http.engine_policy._MOST_UNFINISHED", 2)
    with serving() as served, ThreadPoolExecutor(2) as clients:
        served.engine.go.clear()
        waiting = [clients.submit(served.asked, "/v1/chat/completions", CHAT) for _ in range(2)]
        wait_until(lambda: len(served.engine.requests) == 2, "two are not at the engine")
        status, found = served.asked("/v1/chat/completions", CHAT)
        assert status == 429 and found["error"]["type"] == "rate_limit_error"
        served.engine.go.set()
        assert [one.result(LIMIT_S)[0] for one in waiting] == [200, 200]
        assert served.asked("/v1/chat/completions", CHAT)[0] == 200
