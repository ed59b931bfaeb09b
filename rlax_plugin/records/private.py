"""Directories that only their owner may enter: for prompts, samples, weights, logs and secrets.

Only the uppermost directory of a run needs the mode: what others cannot enter they cannot read.
Directories above it have the modes that their owner chose, see ``exposed``.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.records.files import RunFiles

_OTHERS_WRITE = 0o022


def make_private(directory: Path) -> None:
    """Makes a directory with mode 0700, and missing ones above it with the usual mode.

    One that exists keeps its mode: its owner may have opened it on purpose.

    Raises:
      OSError: it cannot be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise
    else:
        # The umask may have taken from the owner's rights; it cannot have added to the others'.
        directory.chmod(0o700)


def intrusion(directory: Path) -> str | None:
    """Why other users could change a directory's content; None if they cannot, or it is missing.

    Root is trusted: it can do everything anyway. Root in turn trusts no other owner: in a shared
    directory such as /tmp anybody can make the directory of a run that root will start later. A
    container that runs as root on a volume of another user is not affected: the directories that
    it makes there belong to root. Some file systems assign an owner to all files (NFS that
    squashes root, SMB, FUSE), so an owner that new files get as well is accepted.

    Raises:
      OSError: it cannot be looked at.
    """
    try:
        found = [os.stat(directory)]
        if directory.is_symlink():  # whose owner can make it lead elsewhere
            found.append(os.lstat(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for status in found:
        if status.st_uid not in (0, os.geteuid()) and not _assigned(directory, status.st_uid):
            return (
                f"{directory} belongs to user {status.st_uid}, who could replace what is written "
                "there; it must belong to the user of this process: choose a new directory"
            )
    mode = stat.S_IMODE(found[0].st_mode)
    if not mode & _OTHERS_WRITE:
        return None
    mend = f"run {shlex.join(('chmod', 'go-w', str(directory)))}"
    if mode & stat.S_ISVTX:  # such as /tmp, which is meant to be so
        mend = "choose a new directory inside it"
    return (
        f"{directory} has mode {mode:04o}, so other users could replace what is written there: "
        f"{mend}"
    )


def exposed(directory: Path) -> str | None:
    """Why others could put another directory in this one's place at any time; None if they cannot.

    It is for a warning and no error: the volumes of containers are often writable for all, and
    there are no other users.

    Raises:
      OSError: a directory above cannot be looked at.
    """
    for place in directory.resolve().parents:
        status = os.stat(place)
        mode = stat.S_IMODE(status.st_mode)
        why = ""
        if status.st_uid not in (0, os.geteuid()):
            why = f"{place} belongs to user {status.st_uid}"
        elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            why = f"{place} has mode {mode:04o}"
        if why:
            return f"other users could move {directory} away and put their own there: {why}"
    return None


def check_private(key: str, value: str, directory: Path) -> None:
    """Rejects an existing directory in which other users could change something.

    Args:
      key, value: of the config or the command line, which name the directory.

    Raises:
      ConfigError: see ``intrusion``.
    """
    try:
        reason = intrusion(directory)
    except OSError as error:
        reason = f"cannot be read: {directory}: {error.strerror}"
    if reason is not None:
        raise ConfigError(key, value, reason)


def check_private_run(run: RunFiles) -> None:
    """``check_private`` of a run's directory, for a command that writes there without ``--out``.

    Raises:
      ConfigError: see ``intrusion``.
    """
    if run.is_local:
        try:
            check_private("RUN", run.url, Path(run.location()))
        except ConfigError as error:
            reason = f"{error.reason}; or write elsewhere, with --out"
            raise ConfigError("RUN", run.url, reason) from None


def _assigned(directory: Path, owner: int) -> bool:
    """Whether the file system gives new files of this process to that owner."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_uid == owner
    except OSError:
        return False
