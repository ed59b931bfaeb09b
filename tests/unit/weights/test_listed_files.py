"""Files of a part: which lists are believed, and which files are sent."""

import os
from pathlib import Path

import pytest

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import TensorSpec, VersionPart
from rlax_plugin.weights.streams import (
    CHUNK_BYTES,
    ListedFile,
    check_files,
    chunks_of,
    crc32c,
    list_files,
    most_bytes,
    name_problem,
)

PART = VersionPart("base", "/w/1", {"w": TensorSpec((1000, 2), "float32", 0)})


def listed(*names: str, size: int = 1) -> list[ListedFile]:
    return [ListedFile(name, size) for name in names]


HOSTILE = (
    *("", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", ".", "a//b", "a/", "/"),
    *("a\x00b", "a\nb", "\x1b[2J", "\ud800", "n" * 256, "/".join(["d"] * 40), "\u202ex"),
    "/".join(["n" * 200] * 6),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_elsewhere_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="part base has a file"):
        check_files(PART, listed("a", name))


@pytest.mark.parametrize("name", ["a", "_METADATA", "params.x/c/0/1", "...", "a b/c%20", "ä/ö"])
def test_other_names_are_taken(name: str) -> None:
    check_files(PART, listed(name))
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([], "has no files"),
        (listed("a", "b", "a"), "the file 'a' twice"),
        (listed("a", "a/b"), "'a' that is a folder as well"),
        ([ListedFile("a", -1)], "impossible size"),
        (listed(*(f"{i}" for i in range(100_001))), "100,001 files, more than 100,000"),
        (listed(*(f"{i:05d}{'n' * 195}" for i in range(42_000))), "file names of part base exceed"),
    ],
)
def test_an_impossible_list_is_rejected(files: list[ListedFile], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_files(PART, files)


def test_files_may_take_half_as_much_again_as_the_tensors() -> None:
    # 8000 bytes of numbers, 64 KiB for the tensor and 1 MiB for the part.
    assert most_bytes(PART) == 12_000 + (64 << 10) + (1 << 20)
    check_files(PART, listed("a", size=most_bytes(PART)))
    with pytest.raises(ValueError, match=r"take 1\.07 MiB, and its tensors allow 1\.07 MiB"):
        check_files(PART, [*listed("a", size=most_bytes(PART)), *listed("b")])
    tensors = {"a": TensorSpec((100,), "bfloat16", 0), "b": TensorSpec((100,), "float7", 0)}
    part = VersionPart("base", "/w/1", tensors)
    assert most_bytes(part) == 300 + 2400 + (128 << 10) + (1 << 20)


def write(directory: Path, name: str, data: bytes) -> ListedFile:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return ListedFile(name, len(data))


def test_files_are_listed_and_read_from_any_byte(tmp_path: Path) -> None:
    large = os.urandom(CHUNK_BYTES + 5)
    files = [
        write(tmp_path, "a/b/c", large),
        write(tmp_path, "empty", b""),
        write(tmp_path, "z", b"end"),
    ]
    assert list_files(str(tmp_path)) == tuple(files) == list_files(f"{tmp_path}/")
    found = list(chunks_of(str(tmp_path), files, 0, 0))
    assert [(c.file, c.offset, len(c.data)) for c in found] == [
        ("a/b/c", 0, CHUNK_BYTES),
        ("a/b/c", CHUNK_BYTES, 5),
        ("empty", 0, 0),
        ("z", 0, 3),
    ]
    assert all(chunk.crc32c == crc32c(chunk.data) for chunk in found)
    rest = list(chunks_of(str(tmp_path), files, 0, CHUNK_BYTES - 1))
    assert rest[0].data == large[CHUNK_BYTES - 1 :] and len(rest) == 3
    assert [c.data for c in chunks_of(str(tmp_path), files, 2, 1)] == [b"nd"]
    assert not list(chunks_of(str(tmp_path), files, 2, 3))


@pytest.mark.parametrize("kind", ["file", "folder", "pipe"])
def test_a_part_with_anything_but_files_is_not_sent(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    write(secret, "key", b"key")
    part = tmp_path / "part"
    write(part, "a/b", b"x")
    if kind == "file":
        (part / "a/link").symlink_to(secret / "key")
    elif kind == "folder":
        (part / "a/link").symlink_to(secret)
    else:
        os.mkfifo(part / "a/link")
    with pytest.raises(WeightsError, match="is a link"):
        list_files(str(part))


def test_a_part_that_is_a_link_or_empty_has_no_files(tmp_path: Path) -> None:
    write(tmp_path / "part", "a", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "part")
    (tmp_path / "empty").mkdir()
    for name in ("link", "empty"):
        with pytest.raises(WeightsError, match="has no files"):
            list_files(str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        list_files(str(tmp_path / "missing"))


@pytest.mark.parametrize("linked", ["a", "a/b", "a/b/c"])
def test_no_link_is_followed_that_came_after_the_list(tmp_path: Path, linked: str) -> None:
    part, secret = tmp_path / "part", tmp_path / "secret"
    file = write(part, "a/b/c", b"x")
    write(secret, "a/b/c", b"s")
    (part / linked).rename(tmp_path / "old")
    (part / linked).symlink_to(secret / linked)
    with pytest.raises(OSError):
        list(chunks_of(str(part), [file], 0, 0))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path, "a", bytes(CHUNK_BYTES + 1))
    os.truncate(tmp_path / "a", CHUNK_BYTES)
    chunks = chunks_of(str(tmp_path), [file], 0, 0)
    next(chunks)
    with pytest.raises(OSError, match="shorter"):
        next(chunks)
