"""Directories for their owner alone: how they are made, and which existing ones are rejected."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files import private
from rlax_plugin.base.files.private import (
    check_private,
    check_private_run,
    exposed,
    intrusion,
    make_private,
)
from rlax_plugin.base.files.run_files import RunFiles

STRANGER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("mask", "above"), [(0, 0o775), (0o002, 0o775), (0o022, 0o755), (0o077, 0o700)]
)
def test_the_last_directory_is_private_whatever_the_umask(tmp_path, mask: int, above: int) -> None:
    with umask(mask):
        make_private(tmp_path / "a/b/c")
    assert [mode(tmp_path / path) for path in ("a", "a/b", "a/b/c")] == [above, above, 0o700]


def test_a_umask_that_takes_from_the_owner_takes_nothing_here(tmp_path: Path) -> None:
    with umask(0o777):
        make_private(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o700


def test_it_is_never_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "chmod", lambda path, wanted: None)
    with umask(0):
        make_private(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o700


def test_one_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


@pytest.mark.parametrize("allowed", [0o700, 0o755, 0o500, 0o2755])
def test_others_may_look(tmp_path: Path, allowed: int) -> None:
    tmp_path.chmod(allowed)
    assert intrusion(tmp_path) is None


@pytest.mark.parametrize("opened", [0o777, 0o770, 0o775, 0o757, 0o722, 0o702, 0o2775])
def test_others_may_not_write(tmp_path: Path, opened: int) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    place.chmod(opened)
    with pytest.raises(ConfigError) as error:
        check_private("rlax.state_dir", "here", place)
    assert str(error.value) == (
        f"rlax.state_dir = 'here': {place} has mode {opened:04o}, so other users could replace "
        f"what is written there: run chmod go-w '{place}'"
    )


def test_a_directory_like_tmp_is_not_to_be_changed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    said = intrusion(tmp_path)
    assert said is not None and "mode 1777" in said and said.endswith("a new directory inside it")


def test_what_is_missing_is_no_danger(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert intrusion(tmp_path / "none/at/all") is None and intrusion(tmp_path / "file/x") is None


@as_root
def test_a_directory_of_another_user_is_rejected_even_by_root(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"{tmp_path} belongs to user {STRANGER}"):
        check_private("k", "v", tmp_path)
    with pytest.raises(
        ConfigError, match=r"RUN = .* belongs to .*; or write elsewhere, with --out"
    ):
        check_private_run(RunFiles(str(tmp_path)))
    # Root's own directory on somebody's volume.
    make_private(tmp_path / "run")
    assert intrusion(tmp_path / "run") is None


@as_root
def test_a_link_of_another_user_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to("own")
    assert intrusion(link) is None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert f"belongs to user {STRANGER}" in str(intrusion(link))


@as_root
def test_a_file_system_that_decides_about_owners_is_accepted(tmp_path, monkeypatch) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    monkeypatch.setattr(private, "_assigned", lambda directory, owner: owner == STRANGER)
    assert intrusion(tmp_path) is None


def test_a_file_is_put_beside_what_others_have_prepared(tmp_path: Path) -> None:
    """A link with the name of the temporary file is replaced, not followed."""
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / f".x.{os.getpid()}-{threading.get_ident()}").symlink_to(target)
    RunFiles(str(tmp_path)).put("x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new" and not (tmp_path / "x").is_symlink()
    assert target.read_text() == "untouched"


@pytest.mark.parametrize(("above", "said"), [(0o777, True), (0o1777, False), (0o775, False)])
def test_a_directory_that_others_can_move_away_is_told(tmp_path, above: int, said: bool) -> None:
    run = tmp_path / "volume/runs/mine"
    run.mkdir(parents=True)
    (tmp_path / "volume").chmod(above)
    assert exposed(run) == (
        f"other users could move {run} away and put their own there: {tmp_path}/volume has mode "
        f"{above:04o}"
        if said
        else None
    )


@as_root
def test_a_directory_below_one_of_another_user_is_told(tmp_path: Path) -> None:
    (tmp_path / "theirs/run").mkdir(parents=True)
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    (tmp_path / "link").symlink_to("theirs/run")
    for run in (tmp_path / "theirs/run", tmp_path / "link"):
        assert str(exposed(run)).endswith(f": {tmp_path}/theirs belongs to user {STRANGER}")
