"""What a machine lacks ends a command with one sentence, whichever library noticed it."""

import errno
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.liveness.ending import last_failure, record_ending
from rlax_plugin.base.liveness.exhausted import exhausted
from rlax_plugin.rpc.security import run_secrets
from rlax_plugin.tools.cli.common import exit_status


def of_sqlite() -> sqlite3.Error:
    connection = sqlite3.connect(":memory:")
    connection.execute("pragma page_size = 512")
    connection.execute("pragma max_page_count = 2")
    connection.execute("create table t (x)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("insert into t values (zeroblob(5000))")
    return caught.value


def caused() -> Exception:
    error = ValueError("the checkpoint was not written")
    error.__cause__ = OSError(errno.EDQUOT, "quota")
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/a"),
        of_sqlite(),
        caused(),
        ExceptionGroup("two", [caused(), OSError(errno.ENOSPC, "full")]),
        RuntimeError("RESOURCE_EXHAUSTED: [OS error 28: No space left on device]"),
    ],
)
def test_a_full_disk_is_recognized(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, exit_status():
        raise error
    said = capsys.readouterr().err
    assert ended.value.exit_code == 1 and said.startswith("error: a disk is full (")
    assert said.endswith("repeat the command; rlax train continues a run where it ended\n")


@pytest.mark.parametrize(
    ("inodes", "free_bytes", "said"),
    [
        (0, 4096, "a disk has space, but no inodes for further files ([Errno 28] "),
        (0, 0, "a disk is full ([Errno 28] "),
        (9, 4096, "a disk is full ([Errno 28] "),
    ],
)
@pytest.mark.parametrize("filename", ["new.json", b"new.json"])
def test_a_disk_without_inodes_is_not_called_full(
    inodes: int,
    free_bytes: int,
    said: str,
    filename: str | bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def statvfs(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_files=100, f_favail=inodes, f_bavail=free_bytes)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.chdir(tmp_path)
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), filename)
    assert exhausted(error).startswith(said) and asked == [str(tmp_path)]
    assert ("remove some files" in exhausted(error)) == ("inodes" in said)
    assert exhausted(OSError(errno.ENOSPC, "full")).startswith("a disk is full (")


def test_another_error_is_none() -> None:
    words = "cp: error writing 'x': No space left on device"  # a program's, in an answer
    assert exhausted(ValueError(words)) == ""
    unrelated = KeyError("a bug, found while a full disk was handled")
    unrelated.__context__ = OSError(errno.ENOSPC, "full")
    assert exhausted(unrelated) == ""
    two = ExceptionGroup("two", [AssertionError("weights differ"), OSError(errno.ENOSPC, "full")])
    assert exhausted(two) == ""
    looped = ValueError("no such table: t")
    looped.__cause__ = OSError(errno.EIO, "Input/output error")
    looped.__cause__.__cause__ = looped
    assert exhausted(looped) == ""
    with pytest.raises(ValueError, match="no such table"), exit_status():
        raise looped


def test_a_limit_that_a_plug_in_meets_may_pass() -> None:
    library = ImportError("/lib/x.so: failed to map segment from shared object")
    with pytest.raises(typer.Exit) as ended, exit_status():
        raise ConfigError("rlax.plugins", "x", "cannot be imported") from library
    assert ended.value.exit_code == 1


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 1), (errno.EROFS, 1), (errno.EIO, 1), (errno.EACCES, 2)]
)
def test_only_an_error_that_a_restart_cannot_mend_has_status_2(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_secrets, "write_private_json", fail)
    with pytest.raises(typer.Exit) as ended, exit_status():
        run_secrets.run_secrets(tmp_path)
    assert ended.value.exit_code == status


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        ImportError("/lib/_rust.abi3.so: failed to map segment from shared object"),
    ],
)
def test_a_thread_that_cannot_be_started_is_one_sentence(error: Exception, tmp_path: Path) -> None:
    said = f"this process may have no further thread or no more memory ({error}): "
    with pytest.raises(typer.Exit) as ended, exit_status():
        raise error
    assert ended.value.exit_code == 1 and exhausted(error).startswith(said)
    record_ending(tmp_path, ended.value.__cause__)
    assert last_failure(tmp_path) == exhausted(error)
