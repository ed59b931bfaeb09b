"""The prompt sources that read files, as JSON lines or Parquet, and their common base."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from pydantic import Field

from rlax_plugin.api import (
    BrokenRow,
    ConfigError,
    DatasetConfig,
    DatasetSource,
    matching_files,
    one_line,
    opened,
)

_KEY = "rlax.prompt_source"


class FilesConfig(DatasetConfig):
    """Options of sources that read files."""

    path: str | tuple[str, ...] = Field(
        "",
        description="files with the training questions: a path or fsspec URL, a pattern such as "
        "data/*.jsonl, or a list of them. To name the files of each split, set splits instead",
    )

    def check_together(self) -> None:
        if bool(self.path) == bool(self.splits):
            reason = "must be given, or splits in its place"
            if self.path:
                reason = "must not be given together with splits"
            raise ConfigError("path", self.path or None, reason)

    def patterns(self, split: str) -> tuple[str, tuple[str, ...]]:
        """Returns the key that names the files of a split, and its patterns."""
        key = f"{_KEY}.splits.{split}" if self.splits else f"{_KEY}.path"
        found = self.splits[split] if self.splits else self.path
        return key, (found,) if isinstance(found, str) else found

    def check_local(self) -> None:
        """Checks that files on this machine exist.

        Raises:
          ConfigError: a file does not exist.
        """
        for split in self.read_splits:
            key, patterns = self.patterns(split)
            matching_files([one for one in patterns if "://" not in one], key)


class FilesSource(DatasetSource):
    """The rows of files, one file after the other."""

    config: FilesConfig

    def files(self, split: str) -> Sequence[str]:
        key, patterns = self.config.patterns(split)
        return matching_files(patterns, key)


_TOGETHER = 256


class ParquetConfig(FilesConfig):
    """Prompts of Parquet files, one per row."""


class ParquetSource(FilesSource):
    """One prompt per row."""

    config: ParquetConfig
    fills_with_null = True

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any] | BrokenRow]]:
        import pyarrow.parquet as pq

        key, _ = self.config.patterns(split)
        for path in self.files(split):
            number = 0
            with opened(path, key) as file:
                table = pq.ParquetFile(file)
                names = table.schema_arrow.names
                # As a mapping, a row would keep the last of them only.
                if twice := sorted({name for name in names if names.count(name) > 1}):
                    raise ConfigError(key, path, f"has two columns with the name {twice[0]!r}")
                for batch in table.iter_batches(_TOGETHER):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path}, row {number},", row


_BOM = b"\xef\xbb\xbf"
_OTHERS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip (without .gz)"}


class JsonlConfig(FilesConfig):
    """Prompts of files with a JSON object on each line.

    They are in UTF-8, and may be compressed (.gz, .bz2, .xz, .zst).
    """


class JsonlSource(FilesSource):
    """One prompt per line; empty lines are skipped."""

    config: JsonlConfig

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any] | BrokenRow]]:
        key, _ = self.config.patterns(split)
        for path in self.files(split):
            with opened(path, key) as file:
                for number, line in enumerate(_lines(file, self.config.max_row_bytes), 1):
                    if number == 1:
                        _check_encoding(line, key, path)
                        line = line.removeprefix(_BOM)
                    if line.strip() or not line:
                        yield f"{path}, line {number},", self._row(line)

    def _row(self, line: bytes) -> Mapping[str, Any] | BrokenRow:
        if not line:
            most = self.config.max_row_bytes
            return BrokenRow(f"has more than max_row_bytes = {most:,} bytes")
        try:
            found = _decode(line.decode())
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x} at position {error.start}"
            return BrokenRow(f"is not in UTF-8 ({byte})")
        except RecursionError:
            return BrokenRow("is nested too deeply")
        except ValueError as error:
            return BrokenRow(f"is no JSON: {one_line(str(error), 100)}")
        if not isinstance(found, dict):
            return BrokenRow(f"is no JSON object, but {type(found).__name__}")
        return found


def _lines(file: IO[bytes], most: int) -> Iterator[bytes]:
    """Yields the lines of a file with their ends; a line that is too long becomes empty."""
    while line := file.readline(most + 2):
        if len(line.rstrip(b"\r\n")) <= most:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)
        yield b""


def _check_encoding(first: bytes, key: str, path: str) -> None:
    for start, name in _OTHERS.items():
        if first.startswith(start):
            raise ConfigError(key, path, f"must be in UTF-8, and seems to be {name}")
    if b"\0" in first[:100]:
        raise ConfigError(key, path, "must be text in UTF-8, and has zero bytes (UTF-16?)")


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")


_decode = json.JSONDecoder(parse_constant=_reject).decode
