"""Keeps secrets out of what is shown, sent and logged: the only place that knows what one is.

A secret is the value of a key whose name says so (``names_secret``), a name and password in a URL,
and what a query or a header sends under such a name. ``stripped`` removes them from a config.
``hidden`` removes them from text, such as an error that repeats a key: there it also finds the
values that this process knows, of its configs (``learn_secrets``) and of environment variables with
such names. Messages, logs and consoles pass ``hidden``; what a model generates is recorded
unchanged, because a search costs too much there.

This module imports nothing of the project.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TextIO
from urllib.parse import quote, unquote

MARK = "[secret]"

_SHORTEST = 8  # characters; to replace a shorter value everywhere would spoil other words
_LEAST_NUMBER = 10**6  # smaller ones are ids of tokens, or counts

# The last word of a name decides: hf_access_token, but not tokenizer_path or key_file.
_SECRETS = {
    *("accesskey", "accesstoken", "apikey", "auth", "authorization", "authtoken", "bearer"),
    *("cookie", "credential", "credentials", "passphrase", "passwd", "password", "passwords"),
    *("privatekey", "secret", "secretkey", "secrets", "signature"),
}
# With one of these words before it, a key is one of a table, or a path; and a token is of text.
_NO_KEY = {
    *("answer", "cache", "column", "dict", "field", "foreign", "group", "input", "join", "keys"),
    *("label", "metric", "output", "partition", "primary", "prompt", "public", "question"),
    *("reference", "row", "sort", "target", "text", "tls"),
}
_NO_TOKEN = {
    *("begin", "bos", "cls", "end", "eos", "first", "image", "last", "mask", "max", "min", "new"),
    *("next", "pad", "per", "prompt", "sep", "special", "start", "stop", "think", "tool", "unk"),
}
_ENDS = ("credentials", "passphrase", "passwd", "password", "secret")  # also in PGPASSWORD
_SEVERAL = {"access", "api", "auth", "secret"}  # api_keys are secrets; keys and max_tokens are not
_HARMLESS_HEADERS = {"accept", "content-type", "user-agent"}
_FILE = re.compile(r"[^\s:]*/[^\s:]+\.[A-Za-z]{2,5}")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# No value has a quote or a backslash, so that JSON stays JSON, or a bracket, as ``MARK`` has.
_USER = re.compile(r"(?<=//)[^/\s'\"\\<>]+(?=@)")
_VALUE = r"[^\s'\"\\&,;)[\]}]{4,}"
_SCHEME = r"(?:bearer|basic)\s+"
_HEADER = re.compile(
    r"(\b(?:authorization|cookie|x-api-key)\\?['\"]?\s?[:=]\s?\\?['\"]?"
    rf"(?:{_SCHEME}|(?=\S*\d|\S{{16}}))|\bbearer\s+(?=\S*\d)){_VALUE}",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?<![\w-])([\w-]{{1,64}})((?:=\\?['\"]?|\\?['\"]:\s?\\?['\"])(?:{_SCHEME})?+)({_VALUE})",
    re.IGNORECASE,
)
_CONSTANTS = {"false", "none", "null", "true"}

_learned: set[str] = set()


@functools.lru_cache(1 << 12)
def names_secret(name: str) -> bool:
    """True if the value of a key, header, parameter or variable of this name is a secret."""
    *before, last = ["", *(word.lower() for word in _WORD.findall(name))]
    if last in ("key", "token"):
        return before[-1] not in (_NO_KEY if last == "key" else _NO_TOKEN)
    if last in ("keys", "tokens"):
        return before[-1] in _SEVERAL
    return last in _SECRETS or last.endswith(_ENDS)


def stripped(content: Any, mark: str | None = MARK, above: str = "") -> Any:
    """Returns a config without secrets, the same in every process.

    Args:
      mark: text in place of a secret; None: its key is left out, too.
      above: the key of this part of a config.
    """
    if isinstance(content, Mapping):
        secret = {key: _is_secret(above, str(key), value) for key, value in content.items()}
        return {
            key: mark if secret[key] else stripped(value, mark, str(key))
            for key, value in content.items()
            if mark is not None or not secret[key]
        }
    if isinstance(content, list | tuple):
        return type(content)(stripped(one, mark, above) for one in content)
    return _without_forms(content) if isinstance(content, str) else content


def shown_value(key: str, value: Any) -> Any:
    """Returns the value of a dotted key, or of an option of the command line, for a message."""
    names = ["", *key.split(".")]
    # No option takes a secret: --env-secret is the name of an object.
    if not key.startswith("--") and any(map(_is_secret, names, names[1:], [value] * len(names))):
        return MARK
    return stripped(value, above=names[-1])


def learn_secrets(content: Any) -> None:
    """Lets ``hidden`` know the secrets of a config, and those that are in the environment now."""
    _learned.update(_secrets(content))
    _literals.cache_clear()


def hidden(text: str) -> str:
    """Returns a text without secrets."""
    if (literals := _literals()) is not None:
        text = literals.sub(MARK, text)
    return _without_forms(text)


def hide_in(stream: TextIO) -> None:
    """Makes a stream, such as ``sys.stderr`` with its logs and tracebacks, write no secrets.

    The stream itself is changed, as handlers of logs and other libraries hold it already.
    """
    write = stream.write
    if getattr(write, "func", None) is not _write:
        stream.write = functools.partial(_write, write)  # type: ignore[method-assign]


def _write(write: Any, text: str) -> int:
    write(hidden(text))
    return len(text)


def _without_forms(text: str) -> str:
    """Returns a text without what is a secret by its form."""
    if "//" in text:
        text = _USER.sub(MARK, text)
    return _NAMED.sub(_without_value, _HEADER.sub(rf"\1{MARK}", text))


def _without_value(match: re.Match[str]) -> str:
    name, joint, value = match.groups()
    if match.string[max(0, match.start() - 1)] in "?&":
        known = names_secret(name) or name.lower() == "sig"
    else:
        known = names_secret(name) and name.lower() != "key"  # as in "must be KEY=VALUE"
    number = value.isdecimal() and int(value) < _LEAST_NUMBER
    if not known or number or value.lower() in _CONSTANTS:
        return match[0]
    return f"{name}{joint}{MARK}"


def _is_secret(above: str, name: str, value: Any) -> bool:
    if isinstance(value, str):
        possible = bool(value) and not _FILE.fullmatch(value)
    elif isinstance(value, int):
        possible = value >= _LEAST_NUMBER
    else:
        possible = isinstance(value, Mapping | list | tuple) and bool(value)
    if not possible:
        return False
    if above.lower() == "headers":
        return name.lower() not in _HARMLESS_HEADERS
    return names_secret(f"{above}_{name}")


def _secrets(content: Any, above: str = "", inside: bool = False) -> Iterator[str]:
    """Yields the secrets in a config as they may occur in text."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _secrets(value, str(key), inside or _is_secret(above, str(key), value))
    elif isinstance(content, list | tuple):
        for one in content:
            yield from _secrets(one, above, inside)
    elif inside and not isinstance(content, bool | float) and content is not None:
        yield from _forms(str(content))
    elif isinstance(content, str) and "//" in content:
        for user in _USER.findall(content):
            password = user.partition(":")[2]
            yield from (*_forms(password), *_forms(unquote(password)))


def _forms(secret: str) -> Iterator[str]:
    """Yields a secret as texts have it: line by line, and escaped."""
    for line in secret.splitlines():
        line = line.strip()
        if len(line) >= _SHORTEST:
            yield from (line, repr(line)[1:-1], json.dumps(line)[1:-1], quote(line, safe=""))


@functools.lru_cache(1)
def _literals() -> re.Pattern[str] | None:
    """Returns the pattern of the values that this process knows; None if there are none."""
    known = sorted({*_learned, *_secrets(dict(os.environ))}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None
