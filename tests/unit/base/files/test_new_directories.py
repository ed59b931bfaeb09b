"""A directory that a command fills: there as a whole or not at all, whatever ends the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.places import new_directory

FILLING = """
import sys
from rlax_plugin.base.files.places import new_directory
with new_directory("--out", sys.argv[1]) as directory:
    (directory / "half").touch()
    print("filling", flush=True)
    sys.stdin.read()
"""


def fill(out: Path) -> None:
    with new_directory("--out", out) as directory:
        (directory / "whole").touch()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_process_left_is_removed_and_what_another_one_fills_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    other = tmp_path / ".out.12345678"  # named like one, and somebody's own
    other.mkdir()
    (other / "mine").touch()
    command = [sys.executable, "-c", FILLING, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"filling\n"
        beside, lock = sorted(set(tmp_path.iterdir()) - {other})
        fill(out)  # while the other one lives
        assert names(tmp_path) == sorted([".out.12345678", beside.name, lock.name, "out"])
        process.kill()
    (out / "whole").unlink()
    out.rmdir()
    fill(tmp_path / "another")  # of another name: it removes nothing
    assert names(beside / "filled") == ["half"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)  # to whom it does not belong
        fill(out)
    assert names(beside / "filled") == ["half"]
    (out / "whole").unlink()
    out.rmdir()
    (tmp_path / ".out.abcdefgh.lock").touch()  # killed before the directory was made
    foreign = [".out", ".out.", ".out.lock", ".out.mine.lock", ".out.12345678-9.lock"]
    for name in foreign:
        (tmp_path / name).touch()
    fill(out)
    assert names(tmp_path) == sorted([".out.12345678", "another", "out", *foreign])
    assert names(out) == ["whole"] and names(other) == ["mine"]


@pytest.mark.parametrize("error", [ConfigError("SOURCE", None, "is damaged"), KeyboardInterrupt()])
def test_after_an_error_nothing_is_left(error: BaseException, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with (
        pytest.raises(type(error)),
        new_directory("--out", tmp_path / "there" / "a" / "b" / "out") as directory,
    ):
        (directory / "half").touch()
        raise error
    assert names(tmp_path) == ["there"] and names(tmp_path / "there") == []


def test_what_was_put_there_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with pytest.raises(ConfigError, match="exists already"), new_directory("--out", out) as made:
        (made / "half").touch()
        out.mkdir()
    assert names(tmp_path / "new") == ["out"] and names(out) == []


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RlaxError, match=f"{tmp_path}/out cannot be written: .*No space"),
        new_directory("--out", tmp_path / "out"),
    ):
        raise OSError(28, os.strerror(28))
    assert names(tmp_path) == []
