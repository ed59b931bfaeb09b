"""The common base of prompt sources that read files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from rlax_plugin.api import (
    BrokenRow,
    ConfigError,
    DatasetConfig,
    DatasetSource,
    matching_files,
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
        super().check_together()
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
