"""Turns the rows of a dataset into the tables of its splits; runs in a process of its own.

The library ``datasets`` is used where it reads data (``rlax_datasets``), and not here: its
``map`` and its cache know neither splits by a hash of the question, nor rows that are left out with
a reason and a place, nor a digest of ids and tokens, and importing it takes the trainer longer than
opening a table does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.text.harmless import harmless, one_line
from rlax_plugin.base.tokens.chat import Demonstration
from rlax_plugin.base.tokens.rendering import TooLongError
from rlax_plugin.data.prompts.config import KEY, MANIFEST, TRAIN
from rlax_plugin.data.prompts.conversations import ConversationColumns, encoded
from rlax_plugin.data.prompts.row_columns import BrokenRow, BrokenRowError, Columns, Row
from rlax_plugin.data.prompts.table import ELSEWHERE, Skipped
from rlax_plugin.data.prompts.text_source import prompt_id

if TYPE_CHECKING:
    from rlax_plugin.data.prompts.source import DatasetSource

TOO_LONG, DUPLICATE, BROKEN = "too long", "duplicate", "broken"
_TOGETHER = 512  # questions that are encoded at once
_FEW = 8  # demonstrations between two reports of progress
_TOKENS = 2000  # characters of a question, for each token that it may have, that are worth encoding
_MOST_DOMAINS = 1000

SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),
        ("tokens", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("reference", pa.string()),
        ("metadata", pa.string()),
        ("place", pa.string()),
        ("domain", pa.int16()),
        ("trained", pa.list_(pa.int32())),  # of a demonstration: begin, end, begin, end, ...
    ]
)
_BYTES = 32 << 20  # of one record batch


def prepare(
    source: DatasetSource,
    directory: Path,
    files: Mapping[str, Any],
    tell: Callable[[str, int], None],
    *,
    batch_rows: int = 4096,
) -> None:
    """Writes a table for each split, and the file that describes them.

    Args:
      directory: exists, and is empty.
      files: value of ``source.identity`` when the preparation was requested.
      tell: called now and then with a split and the number of its rows read so far.
      batch_rows: see ``TableWriter``.

    Raises:
      ConfigError: the data cannot be used; the message says at which place.
    """
    found = _Preparing(source, directory, tell, batch_rows)
    for split in source.config.read_splits:
        found.read(split)
    if (now := source.identity()) != files:
        raise ConfigError(
            f"{KEY}.splits", None, f"the data changed while it was read: {_changed(files, now)}"
        )
    (directory / MANIFEST).write_text(json.dumps(found.finish()))


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes the first difference."""
    for split, files in now.get("files", {}).items():
        for one in files:
            if one not in before.get("files", {}).get(split, []):
                return f"{one['path']} was written to"
    return "run again when it is complete"


class _Preparing:
    def __init__(
        self,
        source: DatasetSource,
        directory: Path,
        tell: Callable[[str, int], None],
        batch_rows: int,
    ) -> None:
        self._source, self._config, self._tell = source, source.config, tell
        self._writers = {
            split: TableWriter(directory / f"{split}.arrow", batch_rows) for split in source.splits
        }
        self._skipped: dict[str, dict[str, Skipped]] = {
            split: defaultdict(Skipped) for split in source.splits
        }
        self._asked: dict[bytes, str] = {}  # question -> split, of all splits but training
        self._known: set[bytes] = set()  # question and reference
        self._columns: Columns | ConversationColumns | None = None

    def read(self, split: str) -> None:
        rows, done = self._new(split, self._usable(split)), 0
        # Each demonstration is rendered alone; meanwhile the process must not seem to hang.
        for together in itertools.batched(rows, _FEW if self._source.turns else _TOGETHER):
            if self._source.turns:
                texts = [self._demonstration(row) for _, row in together]
                self._tell(split, done := done + len(together))
            else:
                texts = self._encoded([row.question for _, row in together])
            for (target, row), tokens in zip(together, texts, strict=True):
                self._add(target, row, tokens)

    def _usable(self, split: str) -> Iterator[Row]:
        """The valid rows; each invalid one raises an error, or is counted."""
        number = 0
        for number, (place, found) in enumerate(self._source.rows(split), 1):
            if number % _TOGETHER == 0:
                self._tell(split, number)
            try:
                if isinstance(found, BrokenRow):
                    raise BrokenRowError(found.what)
                if self._columns is None:
                    self._columns = self._columns_of(found)
                row = self._columns.take(place, found)
            except BrokenRowError as error:
                self._broken(split, place, str(error))
                continue
            yield row
        self._tell(split, number)

    def _columns_of(self, first: Mapping[str, Any]) -> Columns | ConversationColumns:
        chat, turns = self._source.chat, self._source.turns
        if turns:
            fills = self._source.fills_with_null
            return ConversationColumns(self._config, chat, turns, fills, first)
        return Columns(self._config, chat, list(first))

    def _new(self, split: str, rows: Iterator[Row]) -> Iterator[tuple[str, Row]]:
        """(split that it belongs to, row) of rows that did not occur before."""
        policy = self._config.duplicates
        for row in rows:
            target = split
            question = _hash(row.text)
            if split == TRAIN:
                target = self._held_out(question)
            if target == TRAIN and question in self._asked and policy != "keep":
                # What is evaluated must not be trained on.
                where = self._asked[question]
                self._skip(split, ELSEWHERE, row.place, f"its question is in split {where}, too")
                continue
            if policy != "keep":
                both = _hash(f"{split if split != TRAIN else ''}\0{row.text}\0{row.reference}")
                if both in self._known:
                    what = "has the question and the reference of an earlier row"
                    self._skip(target, DUPLICATE, row.place, what)
                    continue
                self._known.add(both)
            if split != TRAIN:
                self._asked[question] = split
            yield target, row

    def _held_out(self, question: bytes) -> str:
        place, end = int.from_bytes(question[:8], "little") / 2**64, 0.0
        for split, share in self._config.held_out.items():
            end += share
            if place < end:
                return split
        return TRAIN

    def _encoded(self, questions: Sequence[Any]) -> Sequence[list[int] | str]:
        """For each question its tokens, or its defect in words."""
        most = _TOKENS * self._source.max_tokens
        if all(not isinstance(q, str) or len(q) <= most for q in questions):
            try:
                return self._source.encode_all(questions)
            except (RlaxError, ValueError):
                pass  # one by one it shows which
        found: list[list[int] | str] = []
        for question in questions:
            if isinstance(question, str) and len(question) > most:
                found.append([0] * (self._source.max_tokens + 1))  # too long, whatever they are
                continue
            try:
                found += self._source.encode_all([question], alone=True)
            except (RlaxError, ValueError) as error:
                found.append(f"cannot be encoded: {one_line(str(error), 300)}")
        return found

    def _demonstration(self, row: Row) -> Demonstration | str:
        """Its tokens, and those that train; or its defect in words."""
        most = self._source.max_tokens
        too_long = Demonstration([0] * (most + 1), [(0, 1)])  # whatever its tokens are
        if row.bytes > 4 * _TOKENS * most:
            return too_long
        try:
            return encoded(self._source.tokenizer, row.question, most)
        except TooLongError:
            return too_long
        except (RlaxError, ValueError) as error:
            return f"cannot be trained on: {one_line(str(error), 500)}"

    def _add(self, split: str, row: Row, tokens: list[int] | Demonstration | str) -> None:
        spans: list[tuple[int, int]] = []
        if isinstance(tokens, Demonstration):
            tokens, spans = tokens.tokens, tokens.spans
        if isinstance(tokens, str):
            self._broken(split, row.place, tokens)
            return
        if not tokens:
            self._broken(split, row.place, "has a question without a token")
            return
        if len(tokens) > (most := self._source.max_tokens):
            more = f"more than {most:,} tokens"
            what = "it" if spans else "its question"
            self._skip(split, TOO_LONG, row.place, f"{what} has {more}")
            return
        chat, system = self._source.chat, self._config.system
        found = prompt_id(chat, system, row.text, row.reference, row.metadata)
        self._writers[split].add(found, tokens, row, spans)

    def _broken(self, split: str, place: str, what: str) -> None:
        if self._config.broken == "error":
            raise ConfigError(
                f"{KEY}.broken",
                "error",
                f"{place} {what}. Mend the row, or set broken: skip to leave such rows out",
            )
        self._skip(split, BROKEN, place, what)

    def _skip(self, split: str, reason: str, place: str, what: str) -> None:
        self._skipped[split][reason].add(one_line(place), one_line(what))

    def finish(self) -> dict[str, Any]:
        found = {split: writer.close() for split, writer in self._writers.items()}
        for split, skipped in self._skipped.items():
            found[split]["skipped"] = {
                reason: {"count": one.count, "examples": one.examples}
                for reason, one in skipped.items()
            }
        columns = self._columns
        used = {} if columns is None else {"question": columns.question}
        if columns is not None and columns.reference:
            used["reference"] = columns.reference
        return {"splits": found, "columns": used}


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class TableWriter:
    """The file of one split: Arrow columns that are mapped into memory and never changed.

    Args:
      batch_rows: maximum number of rows of one record batch.
    """

    def __init__(self, path: Path, batch_rows: int = 4096):
        self._path, self._count, self._bytes = path, 0, 0
        self._batch_rows = batch_rows
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA)
        self._rows: list[tuple[bytes, list[int], Row, int, list[int]]] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._domains: dict[str, int] = {}

    def add(
        self,
        prompt_id: bytes,
        tokens: list[int],
        row: Row,
        spans: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Adds a prompt, or a demonstration.

        Args:
          spans: see ``Demonstration``.

        Raises:
          ValueError: there are too many domains.
        """
        domain = self._domains.setdefault(row.domain, len(self._domains))
        if domain >= _MOST_DOMAINS:
            raise ValueError(f"more than {_MOST_DOMAINS:,} domains")
        self._rows.append((prompt_id, tokens, row, domain, [*itertools.chain(*spans)]))
        self._count += 1
        self._bytes += row.bytes + 4 * len(tokens)
        if len(self._rows) == self._batch_rows or self._bytes >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        ids, tokens, rows, domains, trained = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        offsets_n = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
        values_t = np.fromiter(itertools.chain.from_iterable(tokens), "<i4", offsets_n[-1])
        places = offsets_n.tolist()
        for own_id, start, end in zip(ids, places[:-1], places[1:], strict=True):
            length = (end - start).to_bytes(4, "little")
            self._digest.update(own_id + length + values_t[start:end].tobytes())
        if any(trained):
            self._digest.update(json.dumps(trained).encode())
        columns = (
            ids,
            pa.ListArray.from_arrays(pa.array(offsets_n), pa.array(values_t)),
            _harmless_all([row.text for row in rows]),
            [row.reference for row in rows],
            [row.metadata_json for row in rows],
            _harmless_all([row.place for row in rows]),
            domains,
            trained,
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
            "rows": self._count,
            "bytes": self._path.stat().st_size,
            "digest": self._digest.hexdigest(),
            "domains": list(self._domains),
        }


def _harmless_all(texts: Sequence[str]) -> Sequence[str]:
    """``harmless`` of each text, with one search over all of them."""
    together = "\n".join(texts)
    return texts if harmless(together) == together else [harmless(one) for one in texts]
