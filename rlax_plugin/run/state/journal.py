"""The journal: numbered segments in the run's directory with all events, in order.

``journal/<thousand>/<number>.json`` contains the events since the previous segment, the checksum of
that segment and its own, so a missing, exchanged or changed segment is detected. It also names its
file of samples, ``samples/<thousand>/<number>.parquet``: the batch that trains next, in row order,
followed by the other scored samples. That file is written first, and is valid only once its segment
exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import checksum, sealed, unsealed
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import samples
from rlax_plugin.run.state.pruned import read_pruned
from rlax_plugin.run.state.read_samples import RecordedGroup, from_table, rows_of

DIRECTORY = "journal"
SAMPLES = "samples"
FORMAT = 6  # of all records of a run, also in its config.json
START = "00000000"
"""The previous checksum in the first segment, which has no previous segment."""


class JournalError(RlaxError):
    """A segment, or a file that it names, is missing, damaged or out of order.

    Attributes:
      number: number of the segment.
      problem: the sentence, without the number.
    """

    def __init__(self, number: int, problem: str):
        self.number, self.problem = number, problem
        super().__init__(f"journal segment {number}: {problem}")


class NotKeptError(JournalError):
    """The samples of a segment were removed, as ``rlax.retention`` says."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that a segment names: its name, number of rows, and checksum (crc32c, hex)."""

    name: str
    rows: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Segment:
    """The events between two commits, and the files of their samples.

    Attributes:
      number: number of the segment, from 1 without gaps.
      previous: checksum of the previous segment, ``START`` for the first.
      step: the step whose batch it commits; None for one written before a checkpoint or at the end.
      samples: files with that batch, and with other samples scored since the previous segment.
      events: the events, in order.
    """

    number: int
    previous: str
    step: int | None
    samples: tuple[FileRecord, ...]
    events: tuple[ev.Event, ...]


def decode(number: int, data: bytes) -> Segment:
    """Returns the segment in a file's content.

    Raises:
      JournalError: the content is not a segment.
    """
    try:
        document = unsealed(data)
        if (found := document["format"]) != FORMAT:
            raise ValueError(f"its format is {found}, expected {FORMAT}")
        segment = Segment(
            number=int(document["segment"]),
            previous=str(document["previous"]),
            step=document["step"],
            samples=tuple(FileRecord(**record) for record in document["samples"]),
            events=tuple(ev.decode(e) for e in document["events"]),
        )
    except (ValueError, LookupError, TypeError, RlaxError) as error:
        raise JournalError(number, f"is damaged: {error}") from error
    if segment.number != number:
        raise JournalError(number, f"contains the number {segment.number} instead of its own")
    return segment


def segment_name(number: int) -> str:
    return f"{DIRECTORY}/{_thousand(number)}/{number:08d}.json"


def samples_name(number: int) -> str:
    """Returns the name of the file with the samples of a segment."""
    return f"{SAMPLES}/{_thousand(number)}/{number:08d}.parquet"


def sample_files(files: RunFiles) -> list[str]:
    """Returns the names of all files of samples, including those that no segment names."""
    return [samples_name(number) for number in numbers(files, SAMPLES)]


def _thousand(number: int) -> str:
    """Returns the name of a segment's subdirectory, which keeps directories of long runs small."""
    return f"{number // 1000:05d}"


def numbers(files: RunFiles, directory: str, above: int = 0) -> list[int]:
    """Returns the numbers of files of segments or samples, ascending, that are above ``above``."""
    found = []
    for thousand in files.names(directory):
        if thousand.isdecimal() and int(thousand) >= above // 1000:
            stems = (n.partition(".")[0] for n in files.names(f"{directory}/{thousand}"))
            found += [int(stem) for stem in stems if stem.isdecimal() and int(stem) > above]
    return sorted(found)


def check_format(files: RunFiles) -> None:
    """Raises an error for a run whose records have another format than ``FORMAT``.

    Raises:
      RlaxError: its ``config.json`` names another format, or none.
    """
    try:
        record = files.get_json("config.json")
    except RlaxError:
        return  # damaged: config.yml stands in, and each segment has its format as well
    if isinstance(record, dict) and (recorded := record.get("format")) != FORMAT:
        earlier = "an earlier format" if recorded is None else f"format {recorded!r}"
        raise RlaxError(
            f"{files.url} was recorded in {earlier}, and only format {FORMAT} can be read or "
            "continued: choose another directory, or use the version of this project that wrote it"
        )


def last_number(files: RunFiles) -> int:
    """Returns the highest number of any segment; 0 if there is none.

    Raises:
      RlaxError: see ``check_format``.
    """
    check_format(files)
    thousands = [int(name) for name in files.names(DIRECTORY) if name.isdecimal()]
    # The last may be empty: a process was killed before it had put its first file.
    for thousand in sorted(thousands, reverse=True):
        if found := numbers(files, DIRECTORY, 1000 * thousand - 1):
            return found[-1]
    return 0


def read(
    files: RunFiles, after: int = 0, previous: str = START, until: int | None = None
) -> Iterator[tuple[Segment, str]]:
    """Yields segments and their checksums, from ``after`` + 1 to ``until``, or to the last one.

    Args:
      previous: checksum of segment ``after``.

    Raises:
      JournalError: a segment is missing, damaged, or does not follow the previous one.
    """
    last = last_number(files) if until is None else until
    for number in range(after + 1, last + 1):
        data = _segment_bytes(files, number)
        segment = decode(number, data)
        if segment.previous != previous:
            # This one has its own checksum: it is the one before that has changed since.
            raise JournalError(
                max(number - 1, 1),
                f"has checksum {previous}, but segment {number} follows one with checksum "
                f"{segment.previous}",
            )
        previous = checksum(data)
        yield segment, previous


def _segment_bytes(files: RunFiles, number: int) -> bytes:
    try:
        return files.get(segment_name(number))
    except FileNotFoundError:
        raise JournalError(number, "is missing, but later segments exist") from None


def read_one(files: RunFiles, number: int) -> Segment:
    """Reads one segment.

    Raises:
      JournalError: the segment is missing or damaged.
    """
    return decode(number, _segment_bytes(files, number))


def read_samples(files: RunFiles, segment: Segment) -> list[RecordedGroup]:
    """Reads the groups in a segment's files, those of its batch first.

    Raises:
      NotKeptError: ``rlax.retention`` did not keep them.
      JournalError: a file is missing, or is not the committed one.
    """
    return [one for record in segment.samples for one in _read(files, segment, record)]


def _read(files: RunFiles, segment: Segment, record: FileRecord) -> list[RecordedGroup]:
    try:
        data = files.get(record.name)
    except FileNotFoundError:
        if segment.number in (pruned := read_pruned(files)):
            raise NotKeptError(segment.number, str(pruned)) from None
        raise JournalError(segment.number, f"{record.name} is missing") from None
    if (found := checksum(data)) != record.crc32c:
        raise JournalError(
            segment.number,
            f"{record.name} has checksum {found}, but {record.crc32c} was committed: the file has "
            "changed",
        )
    try:
        rows = rows_of(data, record.name)
        groups = from_table(rows)
    except RlaxError as error:
        raise JournalError(segment.number, str(error)) from error
    except (LookupError, ValueError, TypeError) as error:
        raise JournalError(segment.number, f"{record.name} is damaged: {error}") from error
    if rows.num_rows != record.rows:
        problem = f"{record.name} holds {rows.num_rows} rows, not {record.rows}"
        raise JournalError(segment.number, problem)
    return groups


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
    """Writes a segment, after the file that it names; blocks.

    Args:
      step: step of the batch; without a batch, the next step.
      batch: rows of the batch that trains at ``step``, see ``samples.of_batch``; None: the segment
        commits no batch.
      others: rows of the other groups scored since the last segment.
      events: events, encoded by ``events.encode``.

    Returns:
      The segment's checksum.

    Raises:
      JournalError: another process has written the segment.
      RlaxError: a file cannot be written.
    """
    reached(FaultPoint.COMMIT_BEGUN)
    if _exists(files, number):  # its samples, too, must not be replaced
        raise _written_by_another(number)
    head: dict[str, Any] = {"format": FORMAT, "segment": number, "previous": previous}
    head |= {"step": None if batch is None else step, "samples": []}
    if tables := [rows for rows in (batch, others) if rows is not None]:
        rows = samples.joined(tables)
        data, name = samples.to_parquet(step, rows), samples_name(number)
        files.put(name, data)
        head["samples"] = [{"name": name, "rows": rows.num_rows, "crc32c": checksum(data)}]
        reached(FaultPoint.SAMPLES_WRITTEN)
    lines = ",\n".join(events)
    data = sealed(f'{json.dumps(head)[:-1]}, "events": [\n{lines}\n]}}')
    if not files.create(segment_name(number), data):
        raise _written_by_another(number)
    reached(FaultPoint.SEGMENT_WRITTEN)
    return checksum(data)


def _exists(files: RunFiles, number: int) -> bool:
    try:
        files.get(segment_name(number))  # unlike a listing, no cache answers this
    except FileNotFoundError:
        return False
    return True


def _written_by_another(number: int) -> JournalError:
    return JournalError(
        number,
        "was written by another process while this one trained, so that this one ends without "
        "replacing it: find the other trainer of the run, and see with rlax audit what it recorded",
    )
