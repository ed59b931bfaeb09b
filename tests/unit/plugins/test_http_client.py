"""What a server may do to the client of rlax_http: each ends within its limit, by name."""

import asyncio
import email.utils
import gzip
import os
import threading
import time

import pytest
import rlax_http.client
from hostile_server import serving
from rlax_http.client import Client, Reply
from rlax_http.failures import ServerError, retry_after_s
from rlax_http.server import ApiKey, ServerConfig, socket_problem

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(rlax_http.client, "_FIRST_WAIT_S", 0.01)


def ask(url: str, limit_s: float = 60.0, key: str = "", body=None, **options) -> Reply:
    async def main():
        client = Client(ServerConfig(**options), url, ApiKey(key))
        try:
            return await client.post(body or {}, limit_s)
        finally:
            await client.close()

    return asyncio.run(main())


def refused(url: str, limit_s: float = 60.0, **options) -> ServerError:
    with pytest.raises(ServerError) as found:
        ask(url, limit_s, **options)
    return found.value


def test_an_answer_comes_with_the_number_of_requests_and_the_key_is_sent():
    with serving(lambda asked: asked.json([1, 2])) as server:
        assert ask(server.url, key=KEY, body={"a": "\ud800"}) == Reply([1, 2], 1)
    (asked,) = server.asked
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body == {"a": "\ud800"}


def test_a_unix_socket_is_asked_in_place_of_the_address(monkeypatch, tmp_path):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    socket = str(tmp_path / "s")
    with serving(lambda asked: asked.json(1), path=socket) as server:
        found = ask("http://server/v1/score", key=KEY, socket=socket)
    (asked,) = server.asked
    assert found == Reply(1, 1) and asked.path == "/v1/score" and asked.headers["Host"] == "server"
    assert asked.headers["Authorization"] == f"Bearer {KEY}"


def test_nothing_is_sent_to_a_socket_that_others_may_have_replaced(tmp_path):
    directory = tmp_path / "open"
    directory.mkdir(0o700)
    socket = str(directory / "s")
    with serving(lambda asked: asked.json(1), path=socket) as server:
        assert ask("http://server", socket=socket).content == 1
        directory.chmod(0o770)
        said = str(refused("http://server", socket=socket))
        assert f"the socket {socket}: {directory} has mode 0770" in said and "chmod go-w" in said
        directory.chmod(0o700)
        assert ask("http://server", socket=socket).content == 1
    assert len(server.asked) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_socket_of_another_user_is_not_asked(tmp_path):
    socket = str(tmp_path / "s")
    with serving(lambda asked: asked.json(1), path=socket) as server:
        os.chown(socket, 12345, -1)
        assert "belongs to user 12345, and must belong" in str(refused("http://s", socket=socket))
    assert server.asked == []


def test_what_a_socket_must_be(tmp_path):
    assert socket_problem(str(tmp_path / "none")) is None  # the server may start later
    assert socket_problem(str(tmp_path / "no directory/s")) is None
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        assert socket_problem(str(tmp_path / name)) == "must be a unix socket"
    long = socket_problem(str(tmp_path / ("x" * 108)))
    assert long is not None and long.startswith("must be at most 107 bytes")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "mine").mkdir(0o700)
    why = socket_problem(str(shared / "mine/s"))
    assert why is not None and f"{shared} has mode 0777" in why


@pytest.mark.parametrize("status", [408, 429, 500, 529])
def test_what_may_pass_is_tried_again_and_the_log_says_so(status, capsys):
    bad = [lambda asked: asked.reply(b"busy", status)] * 3
    with serving(*bad, lambda asked: asked.json(7)) as server:
        assert ask(server.url) == Reply(7, 4)
    said = capsys.readouterr().err
    assert "(requests that failed in a row: 2)" in said and "answers again, after" in said


@pytest.mark.parametrize("status", [400, 403, 499])
def test_what_will_not_pass_is_said_at_once(status):
    with serving(lambda asked: asked.reply(b"<p>no such\nthing\x1b[31m</p>", status)) as server:
        error = refused(server.url)
    assert len(server.asked) == 1 and error.status == status
    assert f"replied {status}: <p>no such\\nthing\\x1b[31m</p>" in str(error)


def test_a_connection_that_closes_is_tried_again():
    def close(asked):
        asked.handler.close_connection = True

    def half(asked):
        asked.reply(b"[1", Content_Length="100")
        asked.handler.close_connection = True

    with serving(close, half, lambda asked: asked.json(1)) as server:
        assert ask(server.url) == Reply(1, 3)


def test_nobody_listens_until_the_limit_is_over():
    with serving(lambda asked: None) as server:
        url = server.url
    error = refused(url, 1.5)
    assert error.passes and "gave no answer within 1.5 s" in str(error)
    assert "ConnectError" in str(error)


def test_a_slow_drip_ends_at_the_limit_of_the_request():
    with serving(lambda asked: asked.endless(b" ", server.stop, 0.05)) as server:
        error = refused(server.url, 4.0, request_s=0.3)
    assert "did not answer within request_s = 0.3 s" in str(error)
    assert len(server.asked) >= 2


def test_a_gigabyte_is_not_read():
    sent = []
    piece = b"[" + b"1," * (1 << 19)

    def answer(asked):
        sent.append(asked.endless(piece, server.stop))

    with serving(answer) as server:
        error = refused(server.url)
        assert "is longer than 1048576 bytes" in str(error)
    assert len(server.asked) == 3  # it might have been a proxy's page
    assert max(sent) < 64 << 20  # what sockets hold


def test_what_is_compressed_is_not_unpacked():
    bomb = gzip.compress(bytes(10 << 20))
    with serving(lambda asked: asked.reply(bomb, Content_Encoding="gzip")) as server:
        assert "is compressed" in str(refused(server.url))
        assert server.asked[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "data", [b"<html>Gateway</html>", b"", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000]
)
def test_what_is_no_json_is_asked_for_three_times(data):
    with serving(lambda asked: asked.reply(data)) as server:
        error = refused(server.url)
    assert len(server.asked) == 3 and "the answer of" in str(error)
    assert len(str(error)) < 500


def test_a_redirect_is_not_followed():
    with serving(lambda asked: asked.json(1)) as other:
        to = f"{other.url}/x"
        with serving(lambda asked: asked.reply(b"", 307, Location=to)) as server:
            error = refused(server.url, key=KEY)
    assert not other.asked and len(server.asked) == 1
    assert "a redirect" in str(error) and to in str(error)


def test_a_key_that_the_server_repeats_is_not_shown():
    said = f"bad key {KEY}, I mean {KEY[:12]}, {KEY[5:]}"
    for status in (200, 401, 302):
        with serving(
            lambda asked, status=status: asked.reply(said.encode(), status, Location=said)
        ) as server:
            error = refused(server.url, key=KEY)
        assert "[key]" in str(error)
        assert not any(KEY[i : i + 8] in str(error) for i in range(len(KEY) - 7))
    assert "sk-test" not in repr(ApiKey(KEY))


def test_cookies_are_not_kept():
    with serving(lambda asked: asked.json(1, Set_Cookie="a=b")) as server:

        async def main():
            client = Client(ServerConfig(), server.url, ApiKey(""))
            await client.post({}, 60)
            await client.post({}, 60)

        asyncio.run(main())
    assert "Cookie" not in server.asked[1].headers


def test_no_more_requests_at_a_time_than_the_share_of_a_process():
    here, most, full = [], [], threading.Event()

    def answer(asked):
        here.append(1)
        most.append(len(here))
        if len(here) >= 3:
            full.set()
        full.wait(60)
        time.sleep(0.05)  # in which more may come
        here.pop()
        asked.json(1)

    with serving(answer) as server:

        async def main():
            client = Client(ServerConfig(concurrency=6), server.url, ApiKey(""), processes=2)
            await asyncio.gather(*(client.post({}, 60) for _ in range(12)))

        asyncio.run(main())
    assert max(most) == 3


@pytest.mark.parametrize(
    "header",
    ["3600", email.utils.formatdate(time.time() + 3600), "9" * 12],
    ids=["s", "date", "long"],
)
def test_a_request_that_is_told_to_wait_too_long_is_tried_again_before_it_fails(header):
    with serving(lambda asked: asked.reply(b"", 429, Retry_After=header)) as server:
        error = refused(server.url, 0.6)
    assert error.passes
    assert "replied 429" in str(error) and "gave no answer within" in str(error)
    assert 2 <= len(server.asked) <= 8  # at half of the time that is left, not all the time


@pytest.mark.parametrize(("header", "least_s"), [("1", 1.0), ("0", 0.005)])
def test_a_wait_is_what_the_server_asks_for_and_never_shorter_than_the_own_one(
    monkeypatch, header, least_s
):
    waits, sleep = [], asyncio.sleep

    async def noted(seconds):
        waits.append(seconds)
        await sleep(0)

    busy = [lambda asked: asked.reply(b"", 429, Retry_After=header), lambda asked: asked.json(1)]
    with serving(*busy) as server, monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", noted)
        ask(server.url)
    assert max(waits) >= least_s


@pytest.mark.parametrize(
    "header, seconds",
    [
        (" 10 ", 10.0),
        ("-3", None),
        ("1e9", None),
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
