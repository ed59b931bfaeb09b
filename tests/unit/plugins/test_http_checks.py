"""``rlax check`` reaches a server once, and says what it found."""

import json
from pathlib import Path

import pytest
from command_line import rlax
from hostile_server import serving
from judging import chat, marker

TESTING = str(Path(__file__).parents[3] / "tests/configs/testing.yml")
KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def check(reward: str, *arguments: str):
    return rlax("check", TESTING, f"rlax.rewards=[{{{reward}}}]", "--json", *arguments)


def document(reward: str, *arguments: str):
    result = check(reward, *arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    return found["words"], {one["key"]: one["text"] for one in found["warnings"]}


def verifier(url: str, *more: str) -> str:
    return ", ".join(("name: http_verifier", f"url: '{url}'", *more))


def test_a_server_that_scores_is_named_with_its_reward():
    with serving(lambda asked: asked.json({"reward": 0.25})) as server:
        words, warnings = document(verifier(server.url))
    (asked,) = server.asked
    assert asked.body["prompt"] == "What is 1+1?" and asked.body["completion"] == "2"
    assert f"{server.url} gave a trial sample, a right answer, 0.25 in" in json.dumps(words)
    assert [key for key in warnings if key.startswith("rlax.rewards")] == ["rlax.rewards.0.url"]


def test_a_judge_is_asked_one_question():
    with serving(lambda asked: asked.json(chat(f"{marker(asked)} 10"))) as server:
        words, _ = document(f"name: llm_judge, model: m, base_url: '{server.url}'")
    assert len(server.asked) == 1
    assert "gave a trial sample, a right answer, 1 in" in json.dumps(words)


@pytest.mark.parametrize(
    ("address", "sent"),
    [("http://127.0.0.1:1", "the prompts"), ("http://localhost:1/v1", "the key and the prompts")],
)
def test_a_port_on_loopback_without_tls_is_one_warning(monkeypatch, address, sent):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    key = ", key_env: JUDGE_KEY" if "key" in sent else ""
    result = check(f"name: llm_judge, model: m, base_url: '{address}'{key}", "--fast")
    found = [one for one in json.loads(result.stdout)["warnings"] if "rewards" in one["key"]]
    assert [one["key"] for one in found] == ["rlax.rewards.0.base_url"]
    assert f"can take its port, receive {sent}, and give rewards" in found[0]["text"]
    assert "name that with rlax.rewards.0.socket" in found[0]["text"]


def test_a_socket_that_others_could_replace_is_an_error(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    result = check(verifier("http://verifier/", "socket: open/s"), "--fast")
    assert result.exit_code == 2
    assert "rlax.rewards.0.socket = 'open/s'" in result.stderr and "mode 0777" in result.stderr


def test_fast_asks_nobody():
    with serving(lambda asked: asked.json(1)) as server:
        document(verifier(server.url), "--fast")
    assert server.asked == []


def test_a_server_that_is_away_is_a_warning():
    with serving(lambda asked: None) as server:
        url = server.url
    _, warnings = document(verifier(url))
    assert warnings["rlax.rewards.0.url"].startswith(f"cannot be reached now: {url}")
    with serving(lambda asked: asked.json({"error": "no tests"})) as server:
        _, warnings = document(verifier(server.url))
    assert warnings["rlax.rewards.0.url"].startswith("scored no trial sample: the verifier cannot")


@pytest.mark.parametrize("status", [308, 401])
def test_a_server_that_finds_the_config_wrong_is_an_error(monkeypatch, status):
    monkeypatch.setenv("VERIFIER_KEY", KEY)
    with serving(lambda asked: asked.reply(KEY.encode(), status, Location="/x")) as server:
        result = check(verifier(server.url, "key_env: VERIFIER_KEY"))
    assert result.exit_code == 2 and len(server.asked) == 1
    assert "rlax.rewards.0.url" in result.stderr and f"replied {status}" in result.stderr
    assert KEY not in result.stderr + result.stdout


def test_a_key_over_a_plain_connection_is_a_warning(monkeypatch):
    monkeypatch.setenv("VERIFIER_KEY", KEY)
    _, warnings = document(
        verifier("http://server.invalid/", "key_env: VERIFIER_KEY"), "rlax.deadlines.rpc_s=1"
    )
    assert "unencrypted to server.invalid" in warnings["rlax.rewards.0.key_env"]
    assert "cannot be reached now" in warnings["rlax.rewards.0.url"]


def test_a_missing_key_is_an_error_with_fast_too(monkeypatch):
    monkeypatch.delenv("VERIFIER_KEY", raising=False)
    result = check(verifier("http://127.0.0.1:1/", "key_env: VERIFIER_KEY"), "--fast")
    assert result.exit_code == 2
    assert "rlax.rewards.0.key_env = 'VERIFIER_KEY'" in result.stderr
