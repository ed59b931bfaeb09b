"""The prompt source ``parquet``, which reads each row of a table as a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlax_datasets.files import FilesConfig, FilesSource
from rlax_plugin.api import BrokenRow, ConfigError, opened

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
