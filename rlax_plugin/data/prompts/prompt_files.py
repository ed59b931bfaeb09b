"""Files that prompts are read from: local ones, or those of an fsspec URL."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.text.harmless import one_line

_GLOB = "*?["
_OF_CODE = (AssertionError, AttributeError, NameError, TypeError)  # no file is the cause of these
_VERSIONS = ("mtime", "ETag", "etag", "generation", "md5Hash", "LastModified", "updated", "created")


def matching_files(patterns: str | Sequence[str], key: str) -> list[str]:
    """Paths or URLs of files; those that match a pattern such as ``data/*.jsonl``, in order.

    Args:
      key: dotted config key of the patterns.

    Raises:
      ConfigError: there is no such file, or its file system cannot be used.
    """
    found: list[str] = []
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        with _naming(key, pattern):
            fs, path = _file_system(pattern)
            if not any(c in pattern for c in _GLOB) or fs.isfile(path):
                names = [path] if fs.isfile(path) else []
            else:
                names = sorted(name for name in fs.glob(path) if fs.isfile(name))
        if not names:
            reason = "is a directory, and must be a file" if fs.isdir(path) else "does not exist"
            # A path that its config's directory has is absolute by now.
            if reason == "does not exist" and not os.path.isabs(pattern) and "://" not in pattern:
                reason += f", neither in the directory of the config nor in {os.getcwd()}"
            raise ConfigError(key, pattern, reason)
        found += names if "://" not in pattern else map(fs.unstrip_protocol, names)
    return found


def identify(path: str, key: str) -> dict[str, Any]:
    """Values that change when a file does: its size and its modification time.

    Raises:
      ConfigError: it cannot be found.
    """
    with _naming(key, path):
        fs, name = _file_system(path)
        fs.invalidate_cache()
        info = fs.info(name)
    if "://" not in path:
        return {"path": path, "size": info["size"], "mtime_ns": os.stat(path).st_mtime_ns}
    versions = {name: str(info[name]) for name in _VERSIONS if info.get(name) is not None}
    return {"path": path, "size": info["size"], **versions}


@contextmanager
def opened(path: str, key: str) -> Iterator[IO[bytes]]:
    """A file's bytes, decompressed if its name ends in ``.gz``, ``.bz2``, ``.xz`` or ``.zst``.

    Raises:
      ConfigError: it cannot be read.
    """
    import fsspec

    zstd = path.endswith(".zst")
    compression = None if zstd else "infer"
    with _naming(key, path), fsspec.open(path, "rb", compression=compression) as file:
        yield _of_zstd(file) if zstd else cast(IO[bytes], file)


def _of_zstd(file: Any) -> IO[bytes]:
    import pyarrow as pa

    return io.BufferedReader(cast(io.RawIOBase, pa.CompressedInputStream(file, "zstd")))


def _file_system(path: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    return url_to_fs(path)


@contextmanager
def _naming(key: str, path: str) -> Iterator[None]:
    """Adds the file's name to any error of its file system; not all of them raise OSError."""
    try:
        yield
    except (RlaxError, *_OF_CODE):
        raise
    except Exception as error:
        reason = one_line(str(error) or type(error).__name__, 300)
        raise ConfigError(key, path, f"cannot be read: {reason}") from error
