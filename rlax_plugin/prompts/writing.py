"""Writes the columns of prompts: an Arrow file that is mapped into memory and never changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rlax_plugin.text.harmless import harmless

SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),
        ("tokens", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("reference", pa.string()),
        ("metadata", pa.string()),
        ("place", pa.string()),
        ("domain", pa.int16()),
    ]
)
_ROWS, _BYTES = 4096, 32 << 20  # of one record batch
MOST_DOMAINS = 1000


class TableWriter:
    """The file of one split.

    Attributes:
      rows: so far.
    """

    def __init__(self, path: Path):
        self._path, self.rows, self._bytes = path, 0, 0
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA)
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        self._digest = hashlib.blake2b(digest_size=16)
        self._domains: dict[str, int] = {}

    def add(
        self,
        prompt_id: bytes,
        tokens: list[int],
        *,
        text: str,
        reference: str,
        metadata: str,
        place: str,
        domain: str,
        size: int,
    ) -> None:
        """Adds a prompt.

        Args:
          metadata: as JSON.
          size: bytes of its texts.

        Raises:
          ValueError: there are too many domains.
        """
        number = self._domains.setdefault(domain, len(self._domains))
        if number >= MOST_DOMAINS:
            raise ValueError(f"more than {MOST_DOMAINS:,} domains")
        ids = np.array(tokens, np.int32)
        self._digest.update(prompt_id + len(ids).to_bytes(4, "little") + ids.tobytes())
        values = (prompt_id, ids, harmless(text), reference, metadata, harmless(place), number)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self.rows += 1
        self._bytes += size + ids.nbytes
        if len(self._columns["id"]) == _ROWS or self._bytes >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        columns, self._bytes = self._columns, 0
        tokens = columns["tokens"]
        if not tokens:
            return
        offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
        arrays = [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(tokens)))
            if one.name == "tokens"
            else pa.array(columns[one.name], one.type)
            for one in SCHEMA
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        self._columns = {name: [] for name in SCHEMA.names}

    def close(self) -> dict[str, Any]:
        """Ends the file; what is to be known of it, for ``PromptTable.open``."""
        self._flush()
        self._writer.close()
        self._sink.close()
        return {
            "rows": self.rows,
            "bytes": self._path.stat().st_size,
            "digest": self._digest.hexdigest(),
            "domains": list(self._domains),
        }
