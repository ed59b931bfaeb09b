"""Options of rewards that ask a server: no key gets into a config, and none is repeated."""

import pytest
from rlax_http import JudgeConfig, VerifierConfig
from rlax_http.server import ServerConfig

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.validation import validate

SECRET = "sk-proj-A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"
PLAIN = "Zx8Cv7Bn6Mq5Wp4Er3Ty2Ui1Op0As9Df8Gh7"  # random, without a known beginning
URL = "http://127.0.0.1:1/score"


def verifier(**options) -> VerifierConfig:
    return validate(VerifierConfig, {"url": URL} | options, "rlax.rewards.0")


def judge(**options) -> JudgeConfig:
    given = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    return validate(JudgeConfig, given | options, "rlax.rewards.0")


@pytest.mark.parametrize("name", ["api_key", "X-API-Key", "key_env", "key_file", "key_prefix"])
@pytest.mark.parametrize("secret", [SECRET, PLAIN])
def test_a_key_in_place_of_an_option_is_refused_and_not_repeated(name, secret):
    _is_refused({name: secret})
    if name not in VerifierConfig.model_fields:
        _is_refused({name: [secret]})


@pytest.mark.parametrize(
    "url",
    [
        f"http://{PLAIN}@host/",
        "http://host/?api_key=short",
        f"https://host/a?v={SECRET}",
        f"https://host/a?v={PLAIN}",
    ],
)
def test_a_key_in_an_address_is_refused_and_not_repeated(url):
    _is_refused({"url": url})


def test_headers_are_no_option():
    _is_refused({"headers": {"Authorization": PLAIN}})


def _is_refused(options) -> None:
    with pytest.raises(ConfigError) as found:
        verifier(**options)
    text = str(found.value)
    assert SECRET not in text and PLAIN not in text and SECRET[8:] not in text
    assert text.startswith("rlax.rewards.0.")
    assert "key_env" in text and "key_file" in text


@pytest.mark.parametrize("name", ["api_key", "Authorization", "x-api-key"])
def test_the_body_of_a_judge_holds_no_key(name):
    for body in ({name: "short"}, {"user": SECRET}):
        with pytest.raises(ConfigError) as found:
            judge(body=body)
        assert "key_env" in str(found.value) and SECRET not in str(found.value)


def test_a_key_from_a_file_is_hidden_in_every_message_of_its_process(tmp_path):
    (tmp_path / "key.txt").write_text(f"{PLAIN}\n")
    assert verifier(key_file=str(tmp_path / "key.txt")).key().value == PLAIN
    assert str(ConfigError("x", f"sent {PLAIN}", "is wrong")) == "x = 'sent [secret]': is wrong"


def test_names_of_variables_and_files_that_are_no_keys_are_taken():
    for name in ("HF_TOKEN", "openai_key", "A", "MY_VERY_LONG_VARIABLE_WITH_THE_KEY_OF_JUDGE_2"):
        assert verifier(key_env=name).key_env == name
    for path in ("/run/secrets/judge", "keys/judge.txt"):
        assert verifier(key_file=path).key_file == path
    assert verifier(url="https://h/v1/chat?api-version=2024-10-21").url


@pytest.mark.parametrize(
    "url",
    ["ftp://host/", "host:80", "http://", "http://h:99999/", "http://h/#a", "http://h/\x1b[m"],
)
def test_an_address_must_be_one(url):
    with pytest.raises(ConfigError, match=r"rlax\.rewards\.0\.url.*must be a URL"):
        verifier(url=url)
    with pytest.raises(ConfigError, match=r"rlax\.rewards\.0\.base_url.*must be a URL"):
        judge(base_url=url)


@pytest.mark.parametrize("given", ["  the-key \n", "the-key"])
def test_a_key_comes_from_a_variable_or_a_file(tmp_path, monkeypatch, given):
    (tmp_path / "key").write_text(given)
    monkeypatch.setenv("JUDGE_KEY", given)
    assert ServerConfig(key_env="JUDGE_KEY").key().value == "the-key"
    assert ServerConfig(key_file=str(tmp_path / "key")).key().value == "the-key"
    assert ServerConfig().key().value == ""


@pytest.mark.parametrize(
    "content, why",
    [(b" \n", "is empty"), (b"a\nb", "one key"), (b"\xff", "not text"), (b"a" * 5000, "one key")],
)
def test_a_file_without_a_key_is_refused(tmp_path, content, why):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=why) as found:
        ServerConfig(key_file=str(tmp_path / "key")).key()
    assert found.value.key == "key_file"


def test_a_missing_variable_or_file_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"key_env = 'NO_SUCH_KEY': .*not set"):
        ServerConfig(key_env="NO_SUCH_KEY").key()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ServerConfig(key_file=str(tmp_path / "none")).key()
    with pytest.raises(ConfigError, match="must be empty if key_env"):
        verifier(key_env="A", key_file="b")


@pytest.mark.parametrize(
    "options, why",
    [
        ({"template": "{completion} {answer}"}, r"no field \{answer\}; .*known: completion, mark"),
        ({"template": "{completion!r}"}, "there is no field"),
        ({"template": "{completion:>9999999999}"}, "there is no field"),
        ({"template": '{completion} {"score": 1}'}, "braces that are no field"),
        ({"template": "{completion} Score: N"}, r"must have the field \{marker\} before"),
        ({"template": "{completion} {marker}", "verdict": "json"}, "must not have the field"),
        ({"template": "{prompt}"}, r"must have the field \{completion\}"),
        ({"lowest": 1.0, "highest": 1.0}, r"lowest = 1.0: must be below highest = 1"),
        ({"body": {"messages": []}}, "the reward sets it"),
    ],
)
def test_a_judge_that_cannot_work_is_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        judge(**options)
