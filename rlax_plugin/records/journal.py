"""The journal: numbered segments in the run's directory that say, in order, what happened.

``journal/<number>.json`` holds the events since the segment before it, whose checksum it names, so
that a missing or exchanged segment is noticed. It also names the files that belong to it, which are
put first: ``batches/<step>.parquet``, the samples of the batch that trains next, in row order, and
``rollouts/<number>.parquet``, the other samples that were scored. The segment makes them count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import pyarrow as pa

from rlax_plugin.errors import RlaxError
from rlax_plugin.records import events as ev
from rlax_plugin.records import samples
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.samples import ScoredGroup

DIRECTORY = "journal"
START = "00000000"
"""What the first segment names as the checksum of the one before it."""


class JournalError(RlaxError):
    """A segment, or a file that it names, is missing, damaged or out of order.

    Attributes:
      number: of the segment.
    """

    def __init__(self, number: int, problem: str):
        self.number = number
        super().__init__(f"journal segment {number}: {problem}")


def checksum(data: bytes) -> str:
    """crc32c, 8 hex digits."""
    return f"{google_crc32c.value(data):08x}"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that a segment names: where, how many samples, and their checksum (crc32c, hex)."""

    name: str
    samples: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Segment:
    """What happened between two commits.

    Attributes:
      number: counts from 1 without gaps.
      previous: checksum of the segment before it, ``START`` for the first.
      step: the step whose batch it commits; None for one written before a checkpoint or at the end.
      batch: samples of that batch; None without a batch.
      rollouts: other samples scored since the segment before; None if there are none.
      events: in order.
    """

    number: int
    previous: str
    step: int | None
    batch: FileRecord | None
    rollouts: FileRecord | None
    events: tuple[ev.Event, ...]


def decode(number: int, data: bytes) -> Segment:
    """The segment in a file's content.

    Raises:
      JournalError: it is something else.
    """
    try:
        document = json.loads(data)
        files = {
            name: None if document[name] is None else FileRecord(**document[name])
            for name in ("batch", "rollouts")
        }
        segment = Segment(
            number=int(document["segment"]),
            previous=str(document["previous"]),
            step=document["step"],
            events=tuple(ev.decode(e) for e in document["events"]),
            **files,
        )
    except (ValueError, LookupError, TypeError, RlaxError) as error:
        raise JournalError(number, f"is damaged: {error}") from error
    if segment.number != number:
        raise JournalError(number, f"contains the number {segment.number} instead of its own")
    return segment


def segment_name(number: int) -> str:
    return f"{DIRECTORY}/{number:08d}.json"


def last_number(files: RunFiles) -> int:
    """The highest number of any segment; 0 if there is none."""
    stems = (name.partition(".")[0] for name in files.names(DIRECTORY))
    return max((int(stem) for stem in stems if stem.isdecimal()), default=0)


def read(
    files: RunFiles, after: int = 0, previous: str = START, until: int | None = None
) -> Iterator[tuple[Segment, str]]:
    """Segments and their checksums, from ``after`` + 1 to ``until``; None: to the last there is.

    Args:
      previous: checksum of segment ``after``.

    Raises:
      JournalError: one is missing, damaged, or does not follow the one before it.
    """
    last = last_number(files) if until is None else until
    for number in range(after + 1, last + 1):
        data = _segment_bytes(files, number)
        segment = decode(number, data)
        if segment.previous != previous:
            raise JournalError(
                number, f"follows a segment with checksum {segment.previous}, not {previous}"
            )
        previous = checksum(data)
        yield segment, previous


def _segment_bytes(files: RunFiles, number: int) -> bytes:
    try:
        return files.get(segment_name(number))
    except FileNotFoundError:
        raise JournalError(number, "is missing, but later segments exist") from None


def read_one(files: RunFiles, number: int) -> Segment:
    """One segment, on its own.

    Raises:
      JournalError: it is missing or damaged.
    """
    return decode(number, _segment_bytes(files, number))


def read_samples(files: RunFiles, segment: Segment, record: FileRecord | None) -> list[ScoredGroup]:
    """The groups in one of a segment's files; none if it has no such file.

    Raises:
      JournalError: the file is missing, or not the one that was committed.
    """
    if record is None:
        return []
    try:
        data = files.get(record.name)
    except FileNotFoundError:
        raise JournalError(segment.number, f"{record.name} is missing") from None
    if (found := checksum(data)) != record.crc32c:
        raise JournalError(
            segment.number,
            f"{record.name} has checksum {found}, but {record.crc32c} was committed: the file has "
            "changed",
        )
    try:
        judged = samples.from_parquet(data, record.name)
    except RlaxError as error:
        raise JournalError(segment.number, str(error)) from error
    if (count := sum(len(g.rollouts) for g, _ in judged)) != record.samples:
        raise JournalError(
            segment.number, f"{record.name} holds {count} samples, not {record.samples}"
        )
    return judged


def write(
    files: RunFiles,
    *,
    number: int,
    previous: str,
    step: int,
    batch: pa.Table | None,
    others: pa.Table | None,
    events: Sequence[str],
) -> str:
    """Puts a segment, after the files that it names; blocking.

    Args:
      step: the batch's; or, without one, the step that is next.
      batch: rows of the groups that train at ``step``, see ``samples.to_table``; None: the segment
        commits no batch.
      others: rows of the groups scored since the last segment that are not among them.
      events: each as ``events.encode`` made it.

    Returns:
      The segment's checksum.

    Raises:
      RlaxError: a file cannot be written.
    """
    reached(FaultPoint.COMMIT_BEGUN)
    head: dict[str, Any] = {"segment": number, "previous": previous, "step": None}
    head |= {"batch": None, "rollouts": None}
    if batch is not None:
        head["step"] = step
        head["batch"] = _put(files, f"batches/{step:08d}.parquet", step, batch)
        reached(FaultPoint.BATCH_WRITTEN)
    if others is not None:
        head["rollouts"] = _put(files, f"rollouts/{number:08d}.parquet", step, others)
        reached(FaultPoint.ROLLOUTS_WRITTEN)
    lines = ",\n".join(events)
    data = f'{json.dumps(head)[:-1]}, "events": [\n{lines}\n]}}\n'.encode()
    files.put(segment_name(number), data)
    reached(FaultPoint.SEGMENT_WRITTEN)
    return checksum(data)


def _put(files: RunFiles, name: str, step: int, rows: pa.Table) -> dict[str, Any]:
    data = samples.to_parquet(step, rows)
    files.put(name, data)
    return {"name": name, "samples": rows.num_rows, "crc32c": checksum(data)}
