"""Options of a reward that asks a server, and the key for that server.

A key is never in a config, because a config is copied into the run's directory, given to every
worker and sent to trackers. So the config names an environment variable or a file, and a value that
looks like a key is rejected without being repeated.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, model_validator

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    exposed,
    intrusion,
    learn_secrets,
    names_secret,
)

_PREFIX = re.compile(
    r"(?i:bearer)\s+\S|sk[-_]|hf_|gh[pousr]_|github_pat_|xox[a-z]-|AKIA[A-Z0-9]{12}|AIza|eyJ"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")  # as most are called, at any length
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=-]{32,}")
_HOW = "name an environment variable with key_env, or a file with key_file"
_LONGEST_KEY = 4096  # bytes
_LONGEST_SOCKET = 107  # bytes of an address that Linux takes
_TELLING = 8  # characters of a key in a row that must not be shown


def looks_secret(text: str) -> bool:
    """True if a text looks like a key: it has a typical beginning, or is long and random."""
    random = _RANDOM.fullmatch(text) and not _VARIABLE.fullmatch(text)
    return bool(_PREFIX.match(text) or random)


def _refused(key: str, what: str) -> ConfigError:
    return ConfigError(key, None, f"{what}; configs are recorded and must hold no key: {_HOW}")


def check_url(key: str, url: str) -> None:
    """Checks that an address is valid and holds no key.

    Raises:
      ConfigError: it is not valid, or seems to hold a key; such an address is not repeated.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        user = parts.username or parts.password
    except ValueError as error:
        raise ConfigError(key, None, f"must be a URL: {error}") from None
    if user is not None:
        raise _refused(key, "has a user name or password before the @")
    asked = parse_qsl(parts.query, keep_blank_values=True)
    if any(names_secret(name) or looks_secret(value) for name, value in asked):
        raise _refused(key, "seems to have a key in its query")
    if any(_PREFIX.match(one) for one in parts.path.split("/")):
        raise _refused(key, "seems to have a key in its path")
    plain = url.isprintable() and " " not in url and not parts.fragment
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise ConfigError(key, url, "must be a URL such as https://host:8000/path")


class ApiKey:
    """A secret that is shown only by its attribute ``value``."""

    def __init__(self, value: str):
        self.value = value

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def hidden(self, text: str) -> str:
        """Returns the text without the key and without longer parts of it."""
        size = min(_TELLING, len(self.value))
        if not size:
            return text
        marked = [False] * len(text)
        for i in range(len(self.value) - size + 1):
            part, at = self.value[i : i + size], -1
            while (at := text.find(part, at + 1)) >= 0:
                marked[at : at + size] = [True] * size
        shown: list[str] = []
        for i, letter in enumerate(text):
            if not marked[i]:
                shown.append(letter)
            elif not (i and marked[i - 1]):
                shown.append("[key]")
        return "".join(shown)


def socket_problem(path: str) -> str | None:
    """Returns the reason why another user could answer at a unix socket; None if no other user can.

    The socket itself may be missing, as while its server starts.
    """
    place = Path(os.path.realpath(path))
    if len(os.fsencode(place)) > _LONGEST_SOCKET:
        return f"must be at most {_LONGEST_SOCKET} bytes with all directories: it is {place}"
    try:
        if why := intrusion(place.parent) or exposed(place.parent):
            return why
        status = os.lstat(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be examined: {error.strerror}"
    if not stat.S_ISSOCK(status.st_mode):
        return "must be a unix socket"
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, and must belong to that of this process or root"
    return None


class AddressConfig(Section):
    """Options of everything that asks a server."""

    socket: PathText = Field(
        default="",
        description="path of the unix socket on which the server listens, on this machine; the "
        "server's URL then only says what to ask for there. Empty: the server is at its URL",
    )
    key_env: str = Field(
        default="", description="name of the environment variable that has the server's API key"
    )
    key_file: PathText = Field(
        default="", description="path of a file that has nothing but the server's API key"
    )
    key_header: str = Field(
        default="Authorization", description="HTTP header in which the key is sent"
    )
    key_prefix: str = Field(default="Bearer ", description="text before the key in that header")

    @model_validator(mode="before")
    @classmethod
    def _holds_no_key(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        for name in given:
            if name not in cls.model_fields and (names_secret(name) or name == "headers"):
                raise _refused(str(name), "is no option")
        for name in ("key_env", "key_file", "key_header", "key_prefix"):
            value = given.get(name)
            if isinstance(value, str) and looks_secret(value):
                raise _refused(name, "looks like a key itself")
        for name, right, like in (
            ("key_env", r"[A-Za-z_][A-Za-z0-9_]{0,99}", "the name of an environment variable"),
            ("key_header", r"[A-Za-z0-9-]{1,60}", "the name of an HTTP header"),
            ("key_prefix", r"[A-Za-z-]{0,20} ?", "a word such as 'Bearer '"),
        ):
            value = given.get(name)
            if isinstance(value, str) and value and not re.fullmatch(right, value):
                raise ConfigError(name, None, f"must be {like}")  # it may be a key all the same
        if given.get("key_env") and given.get("key_file"):
            raise ConfigError("key_file", given["key_file"], "must be empty if key_env is given")
        return given

    def key(self) -> ApiKey:
        """Returns the key; an empty one if the config names none.

        Raises:
          ConfigError: there is no key where the config says.
        """
        name, value, where = "key_env", "", self.key_env
        if self.key_env:
            value = os.environ.get(self.key_env, "")
        elif self.key_file:
            name, where = "key_file", self.key_file
            try:
                with open(self.key_file, "rb") as file:
                    value = file.read(_LONGEST_KEY + 1).decode()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not text"
                raise ConfigError(name, where, f"cannot be read: {why}") from None
        else:
            return ApiKey("")
        value = value.strip()
        if not value:
            what = "this environment variable is not set" if self.key_env else "this file is empty"
            raise ConfigError(name, where, f"{what}; it must have the server's API key")
        if len(value) > _LONGEST_KEY or not re.fullmatch(r"[!-~]+", value):
            reason = "must hold one key of printable ASCII characters and nothing else"
            raise ConfigError(name, where, reason)
        learn_secrets({"key": value})
        return ApiKey(value)


class ServerConfig(AddressConfig):
    """Options of every reward that asks a server."""

    concurrency: PositiveInt = Field(
        default=32,
        description="requests that are under way at the same time; the reward processes share them",
    )
    request_s: Seconds = Field(
        default=60.0,
        description="limit for one request; it is repeated if rlax.deadlines.reward_s leaves time",
    )


def choices_of(config: ServerConfig, context: BuildContext) -> list[tuple[str, Any]]:
    """Returns (dotted key, choice) of each reward of the run that has these options."""
    given = config.model_dump(mode="json", exclude_unset=True)
    section = context.section
    lists = {"rlax": section.rewards}
    lists |= {
        f"rlax.evaluation.sets.{name}": s.rewards for name, s in section.evaluation.sets.items()
    }
    return [
        (f"{key}.rewards.{i}", choice)
        for key, choices in lists.items()
        for i, choice in enumerate(choices)
        if choice.options == given
    ]
