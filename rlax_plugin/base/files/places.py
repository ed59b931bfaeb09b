"""Checks before a run that paths and URLs can be read or written, within a deadline."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.private import intrusion, own_directory
from rlax_plugin.base.files.run_files import RunFiles

_RPC_S = "rlax.deadlines.rpc_s"


def check_readable(key: str, path: str, deadline_s: float) -> None:
    """Checks that a path exists which a run will read.

    Args:
      key: config key that has the path as its value.
      path: a path or an fsspec URL.

    Raises:
      ConfigError: it does not exist, or its file system does not answer within ``deadline_s``.
    """

    def look() -> str | None:
        return None if RunFiles(path).found() else "does not exist"

    _reject(key, path, deadline_s, look)


def check_writable(
    key: str, path: str, deadline_s: float, *, remote: bool = True, private: bool = False
) -> None:
    """Checks a directory in which a run will write; it need not exist.

    Locally, an empty directory is created in it, or in the nearest one above, and removed. For a
    URL it checks only that it can be reached, not that it can be written.

    Args:
      key, path, deadline_s: see ``check_readable``.
      remote: also checks URLs.
      private: rejects a local directory in which other users could write.

    Raises:
      ConfigError: the path cannot become a directory, cannot be reached within ``deadline_s``, or
        is rejected by ``private``.
    """

    def look() -> str | None:
        files = RunFiles(path)
        if files.is_local:
            place = Path(files.location())
            return _obstacle(place) or (intrusion(place) if private else None)
        if remote:
            files.found()
        return None

    _reject(key, path, deadline_s, look)


def check_file_writable(key: str, path: str, deadline_s: float) -> None:
    """Applies ``check_writable`` to the directory of a file.

    Raises:
      ConfigError: the path is that of a directory, or ``check_writable`` rejects it.
    """
    if path.endswith("/") or os.path.isdir(path):
        raise ConfigError(key, path, "must name a file, not a directory")
    parent = path.rpartition("/")[0] if "://" in path else os.path.dirname(os.path.abspath(path))
    try:
        check_writable(key, parent, deadline_s)
    except ConfigError as error:
        raise ConfigError(key, path, error.reason) from None


def check_new_file(key: str, path: str, deadline_s: float, suffix: str) -> None:
    """Checks that a command can create a file, which must not exist; see ``check_file_writable``.

    Args:
      suffix: required ending of its name.

    Raises:
      ConfigError: it has another ending, it exists, or ``check_file_writable`` rejects it.
    """

    def look() -> str | None:
        there = RunFiles(path).found()
        return "exists already: remove it, or name another file" if there else None

    check_file_writable(key, path, deadline_s)
    if not path.endswith(suffix):
        raise ConfigError(key, path, f"must end in {suffix}")
    _reject(key, path, deadline_s, look)


def check_new_directory(key: str, path: str | os.PathLike[str]) -> None:
    """Checks that a local directory can be created.

    Raises:
      ConfigError: it exists, or it cannot be created there.
    """
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(key, text, "must be a local directory")
    target = Path(text)
    if target.exists() or target.is_symlink():
        raise ConfigError(key, text, "exists already: name a directory that does not")
    if (reason := _obstacle(target)) is not None:
        raise ConfigError(key, text, reason)


@contextmanager
def new_directory(key: str, path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a hidden directory that is renamed to ``path`` at the end, or removed on an error.

    A process that is killed meanwhile leaves the hidden directory, which the next call for the same
    path removes.

    Raises:
      ConfigError: see ``check_new_directory``.
      RlaxError: the disk failed, or is full.
    """
    check_new_directory(key, path)
    target = Path(path).absolute()
    try:
        with _parents(target), own_directory(target.parent, f".{target.name}.") as beside:
            filled = beside / "filled"  # with the mode that the umask gives
            filled.mkdir()
            yield filled
            check_new_directory(key, path)
            filled.rename(target)
    except OSError as error:
        raise RlaxError(f"{path} cannot be written: {error}") from error


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Creates missing parent directories, and removes them again if the body fails."""
    made = [place for place in target.parents if not place.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for place in made:
                place.rmdir()
        raise


def _reject(key: str, path: str, deadline_s: float, look: Callable[[], str | None]) -> None:
    # On a daemon: neither a mount nor a network that hangs can keep the process alive.
    found = on_daemon(look, f"looking at {key}")
    try:
        reason = found.result(deadline_s)
    except TimeoutError:
        reason = f"cannot be reached within {deadline_s:g} s ({_RPC_S} sets this limit)"
    except ConfigError as error:  # no such file system
        reason = error.reason
    except (RlaxError, OSError, ValueError) as error:
        reason = f"cannot be read: {error}"
    if reason is not None:
        raise ConfigError(key, path, reason)


def _obstacle(directory: Path) -> str | None:
    """Returns the reason why a local directory cannot be created or written; None if it can."""
    for place in (directory, *directory.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            if place.is_symlink():
                return f"cannot be a directory: {place} is a link to nothing"
            continue  # it can be made, if what is above it allows that
        except OSError as error:
            return f"cannot be a directory: {place}: {error.strerror}"
        if not stat.S_ISDIR(mode):
            return f"cannot be a directory: {place} is a file"
        if not os.access(place, os.W_OK | os.X_OK):
            return f"cannot be written: {place} is not writable"
        return _refusal(place)
    return None


def _refusal(place: Path) -> str | None:
    """Creates a directory and removes it again; returns the reason why this is impossible.

    Modes are not enough: to root every directory looks writable, such as /proc.
    """
    try:
        Path(tempfile.mkdtemp(prefix=".rlax-check-", dir=place)).rmdir()
    except OSError as error:
        return f"cannot be written: {place}: {error.strerror}"
    return None
