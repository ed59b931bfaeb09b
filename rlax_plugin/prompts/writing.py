"""Writes the columns of prompts: an Arrow file that is mapped into memory and never changed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
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
_BYTES = 32 << 20  # of one record batch
MOST_DOMAINS = 1000


class TableWriter:
    """The file of one split.

    Args:
      batch_rows: maximum number of rows of one record batch.

    Attributes:
      rows: number of rows so far.
    """

    def __init__(self, path: Path, batch_rows: int = 4096):
        self._path, self.rows, self._bytes = path, 0, 0
        self._batch_rows = batch_rows
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA)
        self._rows: list[tuple[bytes, list[int], str, str, str, str, int]] = []
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
        self._rows.append((prompt_id, tokens, text, reference, metadata, place, number))
        self.rows += 1
        self._bytes += size + 4 * len(tokens)
        if len(self._rows) == self._batch_rows or self._bytes >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        ids, tokens, texts, references, metadata, places, domains = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        offsets_n = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
        values_t = np.fromiter(itertools.chain.from_iterable(tokens), np.int32, offsets_n[-1])
        self._digest.update(_hashed(ids, offsets_n, values_t))
        columns = (
            ids,
            pa.ListArray.from_arrays(pa.array(offsets_n), pa.array(values_t)),
            _harmless_all(texts),
            references,
            metadata,
            _harmless_all(places),
            domains,
        )
        arrays = [
            found if isinstance(found, pa.Array) else pa.array(found, one.type)
            for one, found in zip(SCHEMA, columns, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))

    def close(self) -> dict[str, Any]:
        """Ends the file; returns the description that ``PromptTable.open`` needs."""
        self._flush()
        self._writer.close()
        self._sink.close()
        return {
            "rows": self.rows,
            "bytes": self._path.stat().st_size,
            "digest": self._digest.hexdigest(),
            "domains": list(self._domains),
        }


def _hashed(ids: Sequence[bytes], offsets_n: np.ndarray, values_t: np.ndarray) -> bytes:
    """For each prompt its id, number of tokens and tokens, in the form that the digest hashes."""
    rows = len(ids)
    found = np.empty(5 * rows + len(values_t), "<i4")  # an id is as long as four numbers
    starts_n = offsets_n[:-1] + 5 * np.arange(rows)
    heads = starts_n[:, None] + np.arange(5)
    found[heads[:, :4]] = np.frombuffer(b"".join(ids), "<i4").reshape(rows, 4)
    found[heads[:, 4]] = np.diff(offsets_n)
    is_token = np.ones(len(found), bool)
    is_token[heads] = False
    found[is_token] = values_t
    return found.tobytes()


def _harmless_all(texts: Sequence[str]) -> Sequence[str]:
    """``harmless`` of each text, with one search over all of them."""
    together = "\n".join(texts)
    return texts if harmless(together) == together else [harmless(one) for one in texts]
