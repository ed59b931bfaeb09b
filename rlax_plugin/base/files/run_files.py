"""The run's directory, on a local disk or an object store: whole files, written atomically.

An object store can neither rename nor append, but an upload becomes visible as a whole when it
ends. On a local disk a temporary file and a rename have the same effect. This module needs nothing
else of a file system.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rlax_plugin.base.errors import ConfigError, RlaxError

PREPARED = "prepared"
"""Folder of a run for files made before step 1; once it exists, the run rejects other configs."""

CONFIG = "config.yml"
"""File of a run's merged config, MaxText's keys and ``rlax:``."""


class RunFiles:
    """Reads and writes whole files below one directory; thread-safe, and every call blocks.

    Args:
      url: a path, or an fsspec URL such as ``gs://bucket/runs/name``.

    Attributes:
      makes_root: False: a local directory that was removed is not made again by writing to it.
      before_write: called before something is written or removed with the age in seconds of
        knowledge that will do; raises an error if this process must not write any more.

    Raises:
      ConfigError: no file system for the URL is installed.
    """

    def __init__(self, url: str | os.PathLike[str], *, makes_root: bool = True):
        self.url, self.makes_root = os.fspath(url), makes_root
        self.before_write: Callable[[float], object] = lambda age_s: None
        try:
            self._fs, root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise ConfigError("base_output_directory", self.url, str(error)) from error
        self._root: str = root.rstrip("/")
        self._fs: fsspec.AbstractFileSystem
        self.is_local = isinstance(self._fs, LocalFileSystem)

    def location(self, name: str = "") -> str:
        """Returns path or URL of a file, for messages and other libraries; local paths absolute."""
        path = posixpath.join(self._root, name) if name else self._root
        return path if self.is_local else self._fs.unstrip_protocol(path)

    @contextmanager
    def _doing(self, what: str, name: str) -> Iterator[None]:
        """Turns any error of a file system into one that names the file, not only an OSError."""
        try:
            yield
        except (FileNotFoundError, RlaxError):
            raise
        except Exception as error:
            raise RlaxError(f"{self.location(name)} cannot be {what}: {error}") from error

    @contextmanager
    def _writing(self, name: str, what: str = "written") -> Iterator[None]:
        self.before_write(0.0)
        try:
            with self._doing(what, name):
                yield
        except FileNotFoundError:  # the directory was removed just now
            self.before_write(0.0)
            raise

    def put(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Writes a file atomically: a reader sees the old or the new content, never a part.

        Args:
          private: only the owner may read it; an object store has its own rules for that.

        Raises:
          RlaxError: the file cannot be written.
        """
        path = self._path(name)
        with self._writing(name):
            if not self.is_local:
                self._fs.pipe_file(path, data)
                return
            os.replace(self._temporary(path, data, private), path)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that must not exist, atomically; of several processes one succeeds.

        Returns:
          False if the file exists with another content. With the same, an object store may have
          repeated a request whose answer was lost.

        Raises:
          RlaxError: the file cannot be written.
        """
        path = self._path(name)
        with self._writing(name):
            try:
                if self.is_local:
                    _link(self._temporary(path, data), path)
                else:
                    self._fs.pipe_file(path, data, mode="create")
                return True
            except FileExistsError:
                return self.get(name) == data

    def _temporary(self, path: str, data: bytes, private: bool = False) -> str:
        """Writes a local file beside the one that it will be; returns its path."""
        writer = f"{os.getpid()}-{threading.get_ident()}"
        temporary = f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.{writer}"
        if self.makes_root:
            os.makedirs(posixpath.dirname(path), exist_ok=True)
        else:
            self._make_below_root(posixpath.dirname(path))
        with suppress(FileNotFoundError):  # of a killed process with the same number
            os.unlink(temporary)
        # A new file: where others may write, they may have put a link there.
        with open(temporary, "xb", opener=_of_owner if private else None) as file:
            file.write(data)
        return temporary

    def _make_below_root(self, folder: str) -> None:
        parts = posixpath.relpath(folder, self._root).split("/")
        for count in range(1, len(parts) + 1):
            with suppress(FileExistsError):
                os.mkdir(posixpath.join(self._root, *parts[:count]))

    def get(self, name: str) -> bytes:
        """Reads a file.

        Raises:
          FileNotFoundError: the file does not exist.
          RlaxError: the file cannot be read.
        """
        with self._doing("read", name):
            if self.is_local:  # twice as fast, for runs of ten thousand files
                with open(self._path(name), "rb", opener=ordinary) as file:
                    return file.read()
            data = self._fs.cat_file(self._path(name))
        assert isinstance(data, bytes)
        return data

    def config(self) -> bytes:
        """Returns the run's merged config, as YAML.

        Raises:
          ConfigError: this is not the directory of a run.
          RlaxError: the config cannot be read.
        """
        if self.is_local and os.path.isfile(self.location()):
            raise ConfigError("RUN", self.url, "is not a run directory: it is a file")
        try:
            return self.get(CONFIG)
        except FileNotFoundError:
            raise self.no_run() from None

    def no_run(self) -> ConfigError:
        """Returns the error that this is not the directory of a run, as it has no config."""
        reason = f"it has no {CONFIG}" if self.found() else "there is no such directory"
        return ConfigError("RUN", self.url, f"is not a run directory: {reason}")

    def put_json(self, name: str, document: Any) -> None:
        """Writes a document as indented JSON."""
        self.put(name, (json.dumps(document, indent=2) + "\n").encode())

    def get_json(self, name: str) -> Any:
        """Reads a JSON document; returns None if there is none.

        Raises:
          RlaxError: the file is not JSON, or cannot be read.
        """
        try:
            return json.loads(self.get(name))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RlaxError(f"{self.location(name)} is damaged: {error}") from error

    def exists(self, name: str) -> bool:
        with self._doing("looked for", name):
            return self._fs.exists(self._path(name))

    def found(self, name: str = "") -> bool:
        """True if a file or directory exists; unlike ``exists`` it raises on an outage.

        Raises:
          RlaxError: the file system does not answer.
        """
        try:
            with self._doing("looked for", name):
                self._fs.info(self._path(name).rstrip("/") or "/")
        except FileNotFoundError:
            return False
        return True

    def names(self, directory: str) -> list[str]:
        """Returns the sorted names directly in a directory; temporary files are left out."""
        self._fs.invalidate_cache()  # another process may have written since
        try:
            with self._doing("listed", directory):
                paths = self._fs.ls(self._path(directory), detail=False)
        except FileNotFoundError:
            return []
        found = (posixpath.basename(path.rstrip("/")) for path in paths)
        return sorted(name for name in found if name and not name.startswith("."))

    def sizes(self, directory: str) -> dict[str, int]:
        """Returns name -> bytes of the files directly in a directory; see ``names``."""
        self._fs.invalidate_cache()
        try:
            with self._doing("listed", directory):
                found = self._fs.ls(self._path(directory), detail=True)
        except FileNotFoundError:
            return {}
        files = ((posixpath.basename(one["name"]), one) for one in found if one["type"] == "file")
        return {name: int(one["size"]) for name, one in files if not name.startswith(".")}

    def delete(self, name: str) -> None:
        """Removes a file, or a directory with its content; does nothing if it does not exist.

        Raises:
          RlaxError: it cannot be removed.
        """
        try:
            with self._writing(name, "removed"):
                self._fs.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)


def _link(temporary: str, path: str) -> None:
    """Gives a file its name, unless that is taken.

    Raises:
      FileExistsError: it is.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as a bucket that is mounted
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        os.rename(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def ordinary(path: str, flags: int) -> int:
    """Opens a file for ``open``; it does not wait for the writer of a pipe.

    Raises:
      OSError: it is no ordinary file, or cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no ordinary file", path)
    return descriptor


def _of_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def holds_results(files: RunFiles) -> bool:
    """True if a run has computed results that another config would contradict."""
    return any(files.names(name) for name in ("checkpoints", "evaluation", "journal", PREPARED))


def file_at(path: str) -> tuple[RunFiles, str]:
    """Returns the directory of a file, given as path or fsspec URL, and the file's name in it."""
    directory, _, name = path.rpartition("/")
    return RunFiles(directory or ("/" if path.startswith("/") else ".")), name
