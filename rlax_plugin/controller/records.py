"""What a run leaves on disk: rollouts as Parquet, snapshots and JSON documents, written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.types import Group

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # the step the group was meant for, from 1
        ("group_id", pa.int64()),
        ("sample", pa.int32()),
        ("attempt", pa.int32()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("reference", pa.string()),
        ("completion", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("logprob_full", pa.list_(pa.float32())),
        ("logprob_sampled", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("seed", pa.uint64()),
        ("finish_reason", pa.string()),
        ("worker", pa.string()),
        ("reward", pa.float64()),  # null where scoring failed
        ("reward_error", pa.string()),
        ("advantage", pa.float64()),  # null where the group was refused
        ("refused", pa.string()),  # null where the group was admitted
    ]
)


def write_json(path: Path, document: Any) -> None:
    """Writes a document so that a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(temporary, path)


def rows(step: int, scored: Sequence[tuple[Group, str | None]]) -> pa.Table:
    """One row per sample, in ``SCHEMA``'s columns."""
    samples = [(g, refused, i, r) for g, refused in scored for i, r in enumerate(g.rollouts)]
    columns: dict[str, list[Any]] = {
        "step": [step] * len(samples),
        "group_id": [g.id for g, _, _, _ in samples],
        "sample": [r.index for _, _, _, r in samples],
        "attempt": [g.attempt for g, _, _, _ in samples],
        "prompt_id": [g.prompt.id for g, _, _, _ in samples],
        "prompt": [g.prompt.text for g, _, _, _ in samples],
        "reference": [g.prompt.reference for g, _, _, _ in samples],
        "completion": [r.text for _, _, _, r in samples],
        "advantage": [
            None if g.advantages is None else float(g.advantages[i]) for g, _, i, _ in samples
        ],
        "refused": [refused for _, refused, _, _ in samples],
    }
    for name in ("seed", "finish_reason", "worker", "reward", "reward_error"):
        columns[name] = [getattr(r, name) for _, _, _, r in samples]
    for name in ("tokens", "logprob_full", "logprob_sampled", "versions"):
        columns[name] = [getattr(r, name) for _, _, _, r in samples]
    return pa.table([columns[f.name] for f in SCHEMA], schema=SCHEMA)


class RolloutWriter:
    """Collects scored groups and writes one Parquet file per ``every`` steps, in the background.

    The file's name carries the first and last step in it. What is not yet written when a run is
    interrupted is written by ``close``.
    """

    def __init__(self, directory: Path, every: int = 20):
        self._directory, self._every = directory, every
        self._kept: list[tuple[int, Sequence[tuple[Group, str | None]]]] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._last: Future[None] | None = None

    def add(self, step: int, scored: Sequence[tuple[Group, str | None]]) -> None:
        self._kept.append((step, scored))
        if len(self._kept) >= self._every:
            self._flush()

    def _flush(self) -> None:
        if self._last is not None and self._last.done():
            self._last.result()  # a full disk is an error, not a silence
        kept, self._kept = self._kept, []
        if kept:
            self._last = self._executor.submit(self._write, kept)

    def _write(self, kept: list[tuple[int, Sequence[tuple[Group, str | None]]]]) -> None:
        table = pa.concat_tables([rows(step, scored) for step, scored in kept])
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{kept[0][0]:08d}-{kept[-1][0]:08d}.parquet"
        temporary = path.with_suffix(".tmp")
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)

    def close(self) -> None:
        self._flush()
        self._executor.shutdown(wait=True)
        if self._last is not None:
            self._last.result()
