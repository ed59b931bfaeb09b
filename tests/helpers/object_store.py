"""``objects://``: an fsspec file system that behaves like ``gs://`` and keeps files locally.

An object appears whole when its upload ends, replaces the one of its name, and never changes; there
are no directories, only names with slashes, and listing goes by prefix. Rename, append and partial
update do not exist: trying one raises. Operations that gcsfs imitates (a move by copying and
deleting) raise as well, because they are not atomic there, and no recovery may rely on them.

``objects://tmp/runs/a`` is the object kept in the file ``/tmp/runs/a``, so all processes of a
machine see the same objects. A name cannot be that of an object and a prefix of others at once.

Importing this module makes ``objects://`` known to fsspec; for the processes of a run it is a
plug-in.
"""

import io
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import fsspec
from fsspec.spec import AbstractFileSystem

from rlax_plugin.api import Extension, hookimpl

PROTOCOL = "objects"

CALLS = "RLAX_OBJECTS_CALLS"
"""Environment variable: a file to which every call is added as a line ``<what> <name>``."""

_UPLOADING = ".uploading-"  # prefix of files that are no objects yet


def calls(path: str | os.PathLike[str]) -> Counter[str]:
    """Number of calls of each kind by the processes that had ``CALLS`` set to ``path``.

    Kinds: get, put, list, info, delete; and rejected, which a test wants to be 0.
    """
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return Counter(line.split(" ", 1)[0] for line in lines)


class ObjectStore(AbstractFileSystem):
    """See the module. Thread-safe; every call reads the disk, without a cache."""

    protocol = PROTOCOL
    root_marker = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        return str(super()._strip_protocol(path)).lstrip("/")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        name = self._strip_protocol(path)
        _count("list", name)
        found = sorted(self._children(name), key=lambda info: info["name"])
        if not found:
            found = [self._info(name)]
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        _count("info", name)
        return self._info(name)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> io.IOBase:
        if mode == "rb":
            _count("get", path)
            file = _file(path)
            if not file.is_file():
                raise FileNotFoundError(path)
            return file.open("rb")
        if mode == "wb":
            _count("put", path)
            return _Upload(_file(path))
        _refuse(f"open {mode!r}", path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Puts an object; with ``create`` only if there is none of its name, as on GCS and S3.

        Raises:
          FileExistsError: there is one.
        """
        name = self._strip_protocol(path)
        _count("put", name)
        with _Upload(_file(name), new=mode == "create") as upload:
            upload.write(value)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in [self._strip_protocol(p) for p in ([path] if isinstance(path, str) else path)]:
            objects = list(_objects(_file(name))) if recursive else []
            if _file(name).is_file():
                objects.append(_file(name))
            if not objects:
                raise FileNotFoundError(name)
            for file in objects:
                _count("delete", _name(file))
                file.unlink(missing_ok=True)

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("rename", path1)

    def _info(self, name: str) -> dict[str, Any]:
        file = _file(name)
        if file.is_file():
            status = file.stat()
            return {
                "name": name, "size": status.st_size, "type": "file", "mtime": status.st_mtime
            }  # fmt: skip
        if next(_objects(file), None) is None:
            raise FileNotFoundError(name)
        return {"name": name, "size": 0, "type": "directory"}

    def _children(self, name: str) -> Iterator[dict[str, Any]]:
        directory = _file(name)
        for entry in os.scandir(directory) if directory.is_dir() else ():
            if not entry.name.startswith(_UPLOADING):
                try:
                    yield self._info(f"{name}/{entry.name}" if name else entry.name)
                except FileNotFoundError:
                    continue  # a prefix of nothing, or deleted meanwhile


class _Upload(io.BytesIO):
    """A file that is written in memory and becomes an object when it is closed.

    As with gcsfs, an exception in a ``with`` block closes it as well, and leaves half an object, so
    code that writes in pieces must not rely on exceptions.
    """

    def __init__(self, target: Path, *, new: bool = False):
        super().__init__()
        self._target, self._new = target, new

    def close(self) -> None:
        if not self.closed:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._target.with_name(f"{_UPLOADING}{uuid.uuid4().hex}")
            temporary.write_bytes(self.getbuffer())
            super().close()
            if not self._new:
                os.replace(temporary, self._target)
                return
            try:
                os.link(temporary, self._target)
            finally:
                temporary.unlink()
        super().close()


def _file(name: str) -> Path:
    return Path("/", name)


def _name(file: Path) -> str:
    return str(file).lstrip("/")


def _objects(directory: Path) -> Iterator[Path]:
    """Every object below a prefix."""
    for root, _, names in os.walk(directory):
        yield from (Path(root, n) for n in names if not n.startswith(_UPLOADING))


def _count(what: str, name: str) -> None:
    if path := os.environ.get(CALLS):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{what} {name}\n")


def _refuse(what: str, name: str) -> NoReturn:
    _count("rejected", f"{what} {name}")
    raise NotImplementedError(f"objects://{name}: an object store has no {what}")


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    return {}  # without a hook it would be no plug-in


fsspec.register_implementation(PROTOCOL, ObjectStore, clobber=True)
