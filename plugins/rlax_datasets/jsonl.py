"""The prompt source ``jsonl``, which reads files with a JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

from rlax_datasets.files import FilesConfig, FilesSource
from rlax_plugin.api import BrokenRow, ConfigError, one_line, opened

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
