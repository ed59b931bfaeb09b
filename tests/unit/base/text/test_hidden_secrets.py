"""What counts as a secret, and where text and configs lose it."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from rich.text import Text

from rlax_plugin.base.errors import ConfigError, UnknownKeyError
from rlax_plugin.base.text import secrets
from rlax_plugin.base.text.command_lines import train_command
from rlax_plugin.base.text.harmless import is_one_line, one_line
from rlax_plugin.base.text.secrets import (
    MARK,
    hidden,
    hide_in,
    learn_secrets,
    names_secret,
    shown_value,
    stripped,
)
from rlax_plugin.base.text.terminal import HarmlessConsole

KEY = 'sk-"quoted"\\and/7!'  # which repr, JSON and URLs write in three ways


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(secrets, "_learned", set())
    secrets._literals.cache_clear()
    yield
    secrets._literals.cache_clear()


def test_names_of_secrets() -> None:
    names = (
        "hf_access_token api_key apiKey api-key X-API-Key key token judge_key client_secret "
        "password db_passwd Authorization Proxy-Authorization Cookie credentials OPENAI_API_KEY "
        "HF_TOKEN JUDGE_KEY_2 AWS_SECRET_ACCESS_KEY X-Amz-Signature api_keys "
        "PGPASSWORD dbpassword clientsecret"
    )
    assert [name for name in names.split() if not names_secret(name)] == []


def test_names_of_other_things() -> None:
    names = (
        "tokenizer_path tokenizer max_tokens tokens token_budget token_s tokens_per_minute keys "
        "key_env key_file key_header key_prefix prometheus_token_file eos_token answer_key "
        "key_proj gdn_num_key_heads public_key AWS_ACCESS_KEY_ID PWD SSH_AUTH_SOCK credit "
        "passwords_seen secretary"
    )
    assert [name for name in names.split() if names_secret(name)] == []


def test_a_config_loses_the_values_and_for_workers_the_keys() -> None:
    config = {
        "hf_access_token": "hf_abc",
        "tokenizer_path": "org/model",
        "empty": {"token": "", "secret": None},
        "rlax": {
            "rewards": [{"name": "r", "api_key": "k", "n": 3, "password": 12345678}],
            "judge": {"headers": {"X-Team": "t", "Accept": "text/html"}, "token": {"a": ["b"]}},
            "url": "https://me:pw@host/x?api_key=abcd&v=2",
            "network": {"tls": {"key": "tls/server.pem"}},
            "eos": {"token": 7},
        },
    }
    kept = {
        "hf_access_token": MARK,
        "tokenizer_path": "org/model",
        "empty": {"token": "", "secret": None},
        "rlax": {
            "rewards": [{"name": "r", "api_key": MARK, "n": 3, "password": MARK}],
            "judge": {"headers": {"X-Team": MARK, "Accept": "text/html"}, "token": MARK},
            "url": f"https://{MARK}@host/x?api_key={MARK}&v=2",
            "network": {"tls": {"key": "tls/server.pem"}},
            "eos": {"token": 7},
        },
    }
    assert stripped(config) == kept
    sent = stripped(config, mark=None)
    assert "hf_access_token" not in sent and sent["rlax"]["rewards"] == [{"name": "r", "n": 3}]
    assert sent["rlax"]["judge"] == {"headers": {"Accept": "text/html"}}
    assert stripped(sent, mark=None) == sent  # as the hash that workers share needs it


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://me:p@ss@host/x", f"GET https://{MARK}@host/x"),
        ("https://h/x?key=abcd&sig=efgh&n=1234", f"https://h/x?key={MARK}&sig={MARK}&n=1234"),
        ("Authorization: Bearer abc123", f"Authorization: Bearer {MARK}"),
        ("{'authorization': 'Basic dTpwYXNzdw=='}", f"{{'authorization': 'Basic {MARK}'}}"),
        ("('x', 'Bearer abc123')", f"('x', 'Bearer {MARK}')"),
        ("Client(api_key='abcd', token=None)", f"Client(api_key='{MARK}', token=None)"),
        ('"{\\"api_key\\": \\"abcd\\"}"', f'"{{\\"api_key\\": \\"{MARK}\\"}}"'),
        ("rlax train c.yml hf_access_token=abcd", f"rlax train c.yml hf_access_token={MARK}"),
    ],
)
def test_text_loses_what_is_a_secret_by_its_form(text: str, shown: str) -> None:
    assert hidden(text) == shown == hidden(shown)


@pytest.mark.parametrize(
    "text",
    [
        "must be key=value, such as rlax.seed=1, or KEY=VALUE",
        "rlax.rewards.0.Authorization: unknown key; did you mean 'author'?",
        "token=128001 pad_token=<pad> max_tokens=1024",
        "bearer tokens are needed // not here @ all",
        '{"key": "rlax.deadlines.group_s", "tokens": "many"}',
    ],
)
def test_other_text_stays(text: str) -> None:
    assert hidden(text) == text


def test_known_values_are_found_in_every_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    monkeypatch.setenv("SOME_PROXY", "http://user:proxy%2Fword@proxy:1")
    monkeypatch.setenv("SOME_TOKEN", "short")
    learn_secrets(
        {"rewards": [{"api_key": KEY}], "pem": {"private_key": "-----BEGIN\nabcdefghij\n"}}
    )
    for spelled in (KEY, repr(KEY), json.dumps(KEY), "sk-%22quoted%22%5Cand%2F7%21"):
        assert hidden(f"it failed with {spelled}.").count(MARK) == 1
        assert "quoted" not in hidden(spelled)
    for value in ("from-the-environment", "proxy/word", "proxy%2Fword", "abcdefghij"):
        assert hidden(f"<{value}>") == f"<{MARK}>"
    assert hidden("a short answer") == "a short answer"


def test_a_message_that_is_cut_keeps_no_part_of_a_secret() -> None:
    learn_secrets({"token": "0123456789" * 4})
    text = "x" * 90 + "0123456789" * 4 + "y" * 90
    assert one_line(text, 100) == "x" * 90 + MARK + "yy... (120 more characters)"
    assert one_line("0123456789" * 4 + "y" * 10_000, 100).startswith(f"{MARK}yyyy")
    assert is_one_line("0123456789", 10) and not is_one_line("0123456789", 9)
    assert not is_one_line("a\nb", 9)


def test_errors_of_a_config_name_the_key_and_not_its_secret() -> None:
    assert str(ConfigError("hf_access_token", "hf_a", "is wrong")) == (
        f"hf_access_token = '{MARK}': is wrong"
    )
    assert str(ConfigError("rlax.rewards.0", {"token": "t1"}, "is wrong")) == (
        f"rlax.rewards.0 = {{'token': '{MARK}'}}: is wrong"
    )
    assert "hf_a" not in str(UnknownKeyError("rlax.api_keys.0", "hf_a", []))
    assert shown_value("--env-secret", "a/b") == "a/b"
    assert shown_value("rlax.network.tls.key", "/etc/server") == "/etc/server"
    assert shown_value("rlax.rollouts.max_new_tokens", 2_000_000) == 2_000_000


def test_a_command_to_paste_has_no_secrets() -> None:
    learn_secrets({"token": "a-secret-token"})
    line = train_command(["c.yml", "hf_access_token=abcd", "rlax.rewards=[{t: a-secret-token}]"])
    assert line.endswith(f"train c.yml 'hf_access_token={MARK}' 'rlax.rewards=[{{t: {MARK}}}]'")


def test_a_stream_hides_secrets_of_prints_logs_and_tracebacks(monkeypatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), write_through=True)
    hide_in(stream)
    hide_in(stream)
    learn_secrets({"token": "a-secret-token"})
    monkeypatch.setattr(sys, "stderr", stream)
    print("printed a-secret-token", file=stream)
    assert stream.write("a-secret-token\n") == 15
    handler = logging.StreamHandler(stream)
    log = logging.Logger("one")
    log.addHandler(handler)
    try:
        raise ValueError("a-secret-token")
    except ValueError as error:
        log.exception("logged")
        sys.__excepthook__(ValueError, error, error.__traceback__)
    text = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "a-secret-token" not in text
    assert text.count(f"ValueError: {MARK}") == 2 and text.count(MARK) == 6  # also of lines of code


@pytest.mark.parametrize(
    ("colours", "shown"),
    [(True, "api_key=q7w8e9r0t1y2"), (False, Text.assemble("api_key=", ("q7w8e9r0t1y2", "bold")))],
)
def test_a_console_hides_secrets_that_colours_or_styles_divide(
    colours: bool, shown: str | Text
) -> None:
    """On a stream that hides them, too: it cannot see a secret between colours."""
    out = io.StringIO()
    hide_in(out)
    system = "standard" if colours else None
    HarmlessConsole(file=out, force_terminal=colours, color_system=system).print(shown)
    assert "q7w8e9r0t1y2" not in out.getvalue() and "secret" in out.getvalue()


@pytest.mark.parametrize(
    "piece", ["key_", "bearer ", "//a", "authorization: ", "a=bbbb ", '"a": "bbbb" ', "x"]
)
def test_the_search_takes_time_in_proportion_to_the_text(piece: str) -> None:
    """A pattern that tried each place again and again would take minutes."""
    text = piece * (200_000 // len(piece))
    assert len(hidden(text)) == len(text)
