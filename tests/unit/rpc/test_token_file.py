"""Files of tokens: which are taken, and the message for the others."""

import os
from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc.security.token_file import read_token

TOKEN = "0123456789abcdef"


def file(directory: Path, content: bytes, mode: int = 0o600) -> Path:
    path = directory / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_one_line_is_a_token(tmp_path: Path, end: str, mode: int) -> None:
    assert read_token("k", file(tmp_path, (TOKEN + end).encode(), mode)) == TOKEN


@pytest.mark.parametrize(
    "content",
    [
        TOKEN[1:],
        "",
        f"{TOKEN}\n\n",
        f"{TOKEN}\nmore",
        f" {TOKEN}",
        f"{TOKEN} {TOKEN}",
        f"{TOKEN}\xe4",
        f"{TOKEN}\0",
        "a" * 4097,
    ],
)
def test_other_contents_are_rejected_and_not_shown(tmp_path: Path, content: str) -> None:
    path = file(tmp_path, content.encode())
    with pytest.raises(ConfigError, match="one line of at least 16 printable ASCII") as error:
        read_token("rlax.some.key", path)
    assert (error.value.key, error.value.value) == ("rlax.some.key", str(path))
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o644, 0o666])
def test_a_file_that_others_may_touch_is_rejected(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, TOKEN.encode(), mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}, .*run chmod 600 {path}"):
        read_token("k", path)


def test_what_is_no_file_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_token("k", tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="is no ordinary file"):
            read_token("k", path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_rejected(tmp_path: Path) -> None:
    path = file(tmp_path, TOKEN.encode())
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        read_token("k", path)
