"""Directories that only their owner may enter: for prompts, samples, weights, logs and secrets.

Only the top directory of a run needs this mode, as others cannot read below a directory that they
cannot enter. Directories above it have the modes that their owner chose, see ``exposed``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles

_OTHERS_WRITE = 0o022
_LOCK = ".lock"


def make_private(directory: Path) -> None:
    """Creates a directory with mode 0700, and missing parents with the usual mode.

    An existing directory keeps its mode, as its owner may have opened it on purpose. Whatever the
    umask, no parent is writable for all: they could move the directory away and put theirs there.

    Raises:
      OSError: the directory cannot be created.
    """
    for parent in reversed(directory.parents):
        if not parent.exists():
            parent.mkdir(0o775, exist_ok=True)
    try:
        directory.mkdir(0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise
    else:
        # The umask may have taken from the owner's rights; it cannot have added to the others'.
        directory.chmod(0o700)


def intrusion(directory: Path) -> str | None:
    """Returns the reason why other users could change a directory's content; None if they cannot.

    The result is also None if the directory is missing. Root is trusted, as it can do everything
    anyway. Root itself trusts no other owner: in a shared directory such as /tmp any user can
    create the directory of a run that root will start later. A container that runs as root on a
    volume of another user is not affected, since directories that it creates there belong to root.
    Some file systems assign an owner to all files (NFS that squashes root, SMB, FUSE), so an owner
    is accepted if new files get the same one.

    Raises:
      OSError: the directory cannot be examined.
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
    """The reason why others could replace this directory at any time; None if they cannot.

    It is for a warning, not an error: the volumes of containers are often writable for all, and
    there are no other users.

    Raises:
      OSError: a parent directory cannot be inspected.
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
      key, value: key of the config or the command line that names the directory, and its value.

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
    """Applies ``check_private`` to a run's directory, for a command that writes there by default.

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
    """True if the file system gives new files of this process to that owner."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_uid == owner
    except OSError:
        return False


@contextmanager
def own_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new private directory of this process, which is deleted at the end.

    Those with the same prefix whose processes were killed are deleted first: the lock of each
    living one is taken.

    Raises:
      OSError: it cannot be created.
    """
    made_here = re.compile(re.escape(prefix) + "[a-z0-9_]{8}" + re.escape(_LOCK))  # by mkstemp
    for left in parent.iterdir():
        if made_here.fullmatch(left.name) and not left.is_symlink():
            with suppress(OSError):  # it is in use, or another process deletes it
                _delete_left(left)
    with _new_lock(parent, prefix) as lock:
        own = lock.with_name(lock.name.removesuffix(_LOCK))
        try:
            own.mkdir(0o700)
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextmanager
def _new_lock(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new file that this process has locked.

    A process that deletes what is left may look at the file before it is locked, and delete it.
    """
    while True:
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=_LOCK, dir=parent)
        with open(descriptor, "w") as lock:
            with suppress(OSError):  # a file system without locks: then nothing is ever left over
                # Others hold it for as long as they look at it: no longer than a deletion takes.
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_nlink:
                yield Path(name)
                return


def _delete_left(path: Path) -> None:
    """Deletes the directory of a killed process, and its lock.

    Raises:
      OSError: its process is alive, or it belongs to another user.
    """
    own = path.with_name(path.name.removesuffix(_LOCK))
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_uid == os.geteuid():
            if own.exists():
                shutil.rmtree(own)
            path.unlink()
