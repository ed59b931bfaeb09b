"""What a run leaves on disk: rollouts as Parquet, snapshots and JSON documents, written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.errors import RlaxError
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        raise RlaxError(f"{path} cannot be written: {error}") from error


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

    The file's name carries the first and last step in it. A checkpoint is preceded by ``flush``,
    so no file reaches across one, and ``rewind`` to a checkpoint has whole files to remove.

    Args:
      on_error: called on the writing thread with what went wrong: a full disk is no silence.
    """

    def __init__(
        self, directory: Path, on_error: Callable[[BaseException], object], every: int = 20
    ) -> None:
        self._directory, self._on_error, self._every = directory, on_error, every
        self._kept: list[tuple[int, Sequence[tuple[Group, str | None]]]] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="records")

    def rewind(self, step: int) -> None:
        """Removes what was recorded of later steps, which will be done again."""
        for path in self._directory.glob("*.parquet"):
            if int(path.stem.partition("-")[0]) > step:
                path.unlink()
        for path in self._directory.glob("*.tmp"):
            path.unlink()

    def add(self, step: int, scored: Sequence[tuple[Group, str | None]]) -> None:
        self._kept.append((step, scored))
        if len(self._kept) >= self._every:
            self.flush()

    def flush(self) -> Future[None]:
        """Ends once everything added so far is on disk; raises if it is not."""
        kept, self._kept = self._kept, []
        future = self._executor.submit(self._write, kept)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[None]) -> None:
        if (error := future.exception()) is not None:
            self._on_error(error)

    def _write(self, kept: list[tuple[int, Sequence[tuple[Group, str | None]]]]) -> None:
        if not kept:
            return
        path = self._directory / f"{kept[0][0]:08d}-{kept[-1][0]:08d}.parquet"
        temporary = path.with_suffix(".tmp")
        try:
            table = pa.concat_tables([rows(step, scored) for step, scored in kept])
            self._directory.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, temporary, compression="zstd")
            os.replace(temporary, path)
        except OSError as error:
            raise RlaxError(f"rollouts cannot be written to {path}: {error}") from error

    def close(self) -> None:
        self.flush()
        self._executor.shutdown(wait=True)


class MetricsWriter:
    """One JSON line per step, each step once and in order, over any number of restarts."""

    def __init__(self, path: Path):
        self._path = path
        self._file: IO[str] | None = None

    def rewind(self, step: int) -> list[dict[str, float]]:
        """Cuts the file after ``step`` and opens it; returns the lines that stay."""
        kept: dict[int, dict[str, float]] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            # The last line of a killed run may be a part of one: nothing after it counts.
            try:
                metrics = json.loads(line)
            except json.JSONDecodeError:
                break
            if metrics["step"] <= step:
                kept[metrics["step"]] = metrics
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(metrics) + "\n" for metrics in kept.values()))
        os.replace(temporary, self._path)
        self._file = self._path.open("a", buffering=1)
        return list(kept.values())

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "rewind opens the file"
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
