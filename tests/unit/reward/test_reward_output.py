"""What reward processes print, on its way to their log."""

import os
from pathlib import Path

import pytest

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text import secrets
from rlax_plugin.reward.output import RewardOutput


def test_a_full_log_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "logs/rewards.log"
    older = path.with_name("rewards.log.1")
    for process in range(3):  # the next process of the run goes on with the file
        one = RewardOutput(path, most_bytes=100_000)
        for line in range(10):
            os.write(one.descriptor, f"{process}.{line} ".encode() + b"x" * 29_995 + b"\n")
        one.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["rewards.log", "rewards.log.1"]
    kept = [line.split()[0] for file in (older, path) for line in file.read_text().splitlines()]
    # Each file has 3 lines of 30 kB, so that the last of 30 begin none.
    assert kept == ["2.4", "2.5", "2.6", "2.7", "2.8", "2.9"]
    assert older.stat().st_size <= 100_000 and path.stat().st_size <= 100_000


def test_a_log_that_cannot_be_renamed_gets_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "rewards.log"
    path.with_name("rewards.log.1").mkdir()
    one = RewardOutput(path, most_bytes=50_000)
    for _ in range(10):
        os.write(one.descriptor, b"x" * 29_999 + b"\n")
    one.close()
    assert path.stat().st_size == 30_000


def test_a_secret_is_hidden_wherever_it_is_in_a_line_of_any_length(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(secrets, "_learned", set())
    secrets.learn_secrets({"token": "planted-7q9z"})
    # Every place of the secret beside the end of a read of 32 KiB, and of a part of the line.
    for place in (*range(32755, 32769), *range(28662, 28674), 65530):
        output = RewardOutput(tmp_path / f"{place}.log")
        os.write(output.descriptor, b"x" * place + b"planted-7q9z" + b"y" * (99_000 - place))
        output.close()
        written = (tmp_path / f"{place}.log").read_text()
        assert written == "x" * place + "[secret]" + "y" * (99_000 - place)
    secrets._literals.cache_clear()


def test_a_log_that_is_a_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rewards.log"
    path.mkdir()
    with pytest.raises(
        RlaxError, match=r"rewards\.log cannot be opened for writing: Is a directory"
    ):
        RewardOutput(path)
