"""The files of a part: which there are, what is allowed, and reading them without following links.

The server trusts no name that a worker sends: it looks it up in its own list. A worker trusts no
list: names, sizes and counts are checked before anything is written.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import cast

import google_crc32c
import ml_dtypes  # noqa: F401  registers bfloat16 and its like under their names

from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.text.amounts import in_bytes
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import TensorSpec, VersionPart

CHUNK_BYTES = 1 << 20
"""Maximum size of the data in a message."""
MOST_FILES = 100_000
"""Maximum number of files of one part."""
MOST_NAME_BYTES = 8 << 20
"""Maximum bytes of all names of one part, whose list is one message."""

_LONGEST_NAME = 1024  # bytes
_LONGEST_SEGMENT = 255  # bytes, of most file systems
_MOST_SEGMENTS = 32
_SHOWN = 200  # characters of a name in a message
# Beside its numbers, a store writes metadata and checksums, and may pad: files may take half as
# much again as the tensors, and this much for each tensor and each part.
_FACTOR, _TENSOR_BYTES, _PART_BYTES = 1.5, 64 << 10, 1 << 20
_UNKNOWN_BYTES = 16  # of an element whose dtype is unknown here
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # which opens a named pipe without waiting


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file of a part.

    Attributes:
      name: relative to the part's directory, with slashes.
      size: bytes.
      sha256: digest of its content.
    """

    name: str
    size: int
    sha256: bytes


def crc32c(data: bytes) -> int:
    return cast(int, google_crc32c.value(data))


def most_bytes(part: VersionPart) -> int:
    """Maximum bytes of all files of a part, with a margin for metadata and padding."""
    numbers = sum(map(_nbytes, part.tensors.values()))
    return int(_FACTOR * numbers) + len(part.tensors) * _TENSOR_BYTES + _PART_BYTES


def _nbytes(tensor: TensorSpec) -> int:
    try:
        return tensor.nbytes
    except TypeError:
        return math.prod(tensor.shape) * _UNKNOWN_BYTES


def check_files(part: VersionPart, files: Sequence[PartFile]) -> None:
    """Checks a list that came from a server.

    Raises:
      ValueError: it names a file outside of the part's directory, or it is longer or larger than
        the files of this part can be.
    """
    if not files:
        raise ValueError(f"part {part.name} has no files")
    if len(files) > MOST_FILES:
        raise ValueError(f"part {part.name} has {len(files):,} files, more than {MOST_FILES:,}")
    if sum(len(file.name) for file in files) > MOST_NAME_BYTES:
        raise ValueError(f"the file names of part {part.name} exceed {in_bytes(MOST_NAME_BYTES)}")
    folders: set[str] = set()
    names: set[str] = set()
    for file in files:
        shown = one_line(repr(file.name), _SHOWN)
        if (problem := name_problem(file.name)) is not None:
            raise ValueError(f"part {part.name} has a file {shown}, {problem}")
        if file.size < 0 or len(file.sha256) != hashlib.sha256().digest_size:
            raise ValueError(f"part {part.name} has a file {shown} of impossible size or digest")
        if file.name in names:
            raise ValueError(f"part {part.name} has the file {shown} twice")
        names.add(file.name)
        segments = file.name.split("/")
        folders.update("/".join(segments[:end]) for end in range(1, len(segments)))
    if both := names & folders:
        shown = one_line(repr(min(both)), _SHOWN)
        raise ValueError(f"part {part.name} has a file {shown} that is a folder as well")
    size, most = sum(file.size for file in files), most_bytes(part)
    if size > most:
        raise ValueError(
            f"the files of part {part.name} take {in_bytes(size)}, and its tensors allow "
            f"{in_bytes(most)}"
        )


def name_problem(name: str) -> str | None:
    """The reason why a name cannot be that of a file inside a directory; None if it can."""
    if not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        return f"which is not of 1 to {_LONGEST_NAME} bytes of printable characters"
    segments = name.split("/")
    if len(segments) > _MOST_SEGMENTS:
        return f"which is in more than {_MOST_SEGMENTS - 1} folders"
    for segment in segments:
        if segment in ("", ".", "..") or len(segment.encode()) > _LONGEST_SEGMENT:
            return "which is no plain relative path"
    return None


def list_files(directory: str) -> tuple[PartFile, ...]:
    """The files of a part that is on a disk, with their digests, in the order of names. Blocking.

    Raises:
      WeightsError: they cannot be sent: one is a link or no ordinary file, or has a name that no
        reader takes, or there are too many or none.
      OSError: they cannot be read.
    """
    found: list[PartFile] = []
    named = 0
    top = len(directory.rstrip("/")) + 1
    for place, folders, names, inside in os.fwalk(directory.rstrip("/"), onerror=_raise):
        for name in folders:
            if stat.S_ISLNK(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                raise WeightsError(f"{place}/{name} is a link, which is not followed")
        for name in names:
            relative = f"{place}/{name}"[top:]
            if (problem := name_problem(relative)) is not None:
                shown = one_line(repr(relative), _SHOWN)
                raise WeightsError(f"{directory} has a file {shown}, {problem}")
            named += len(relative.encode())
            if len(found) == MOST_FILES or named > MOST_NAME_BYTES:
                raise WeightsError(
                    f"{directory} has more than {MOST_FILES:,} files, or their names take more "
                    f"than {in_bytes(MOST_NAME_BYTES)}"
                )
            found.append(_examined(inside, name, relative, place))
    if not found:
        raise WeightsError(f"{directory} has no files")
    return tuple(sorted(found, key=lambda file: file.name))


def _raise(error: OSError) -> None:
    raise error


def _examined(inside: int, name: str, relative: str, place: str) -> PartFile:
    if not stat.S_ISREG(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
        raise WeightsError(f"{place}/{name} is a link or no ordinary file, and is not sent")
    with open(os.open(name, _FILE, dir_fd=inside), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return PartFile(relative, os.fstat(file.fileno()).st_size, digest)


def chunks_of(
    directory: str, files: Sequence[PartFile], first: int, offset: int
) -> Generator[pb.Chunk]:
    """Yields the content of files from one byte on. Blocking.

    Args:
      first: index of the file to begin with.
      offset: first byte in this file.

    Raises:
      OSError: a file cannot be read, or is not as long as listed.
    """
    for file in files[first:]:
        descriptor = _opened(directory, file.name)
        try:
            while offset < file.size or not file.size:
                data = os.pread(descriptor, min(CHUNK_BYTES, file.size - offset), offset)
                if not data and file.size:
                    raise OSError(f"{directory}/{file.name} has become shorter than it was")
                yield pb.Chunk(file=file.name, offset=offset, data=data, crc32c=crc32c(data))
                if not file.size:
                    break
                offset += len(data)
        finally:
            os.close(descriptor)
        offset = 0


def _opened(directory: str, name: str) -> int:
    """A descriptor of a file, opened folder by folder, so that no link leads elsewhere."""
    *folders, last = name.split("/")
    here = os.open(directory, _FOLDER)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(last, _FILE, dir_fd=here)
    finally:
        os.close(here)
