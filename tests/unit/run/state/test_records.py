"""What is written down comes back bit for bit, and what is damaged is noticed."""

import dataclasses
import errno
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from command_line import rlax
from histories import History, batch_of, bits

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import sealed
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.journal import FileRecord, JournalError, Segment
from rlax_plugin.run.state.read_samples import as_batch

EVENTS = [
    ev.Issued(7, ("a", 'quote " and \n line'), 3),
    ev.Reissued(7, 2, "worker lost", Ending.WORKER_LOST),
    ev.Generated(7, 2, ("w0", "w1"), 3, 4, 8, 120),
    ev.Scored(7, 5, 8, None),
    ev.Scored(8, 0, 0, "all rewards failed"),
    ev.Trained(5, (7, 9), 2),
    ev.Dropped(9, "too stale"),
    ev.Published(5, "0badc0de"),
    ev.Resumed(4),
    ev.Generated(5, 1, ("w0",), 0, 0, 1, 2, sample=0, trajectory=1, turn=2),
    ev.Discarded(5, 0, 0, 1),
]


# --- events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=ev.kind)
def test_an_event_is_one_line_and_comes_back(event: ev.Event) -> None:
    line = ev.encode(event)
    assert "\n" not in line
    assert ev.decode(json.loads(line)) == event


def test_what_is_no_event_is_rejected() -> None:
    for document in (
        {},
        {"event": "exploded", "group": 1},
        {"event": "dropped", "group": 1},
        {"event": "dropped", "group": 1, "reason": "x", "mood": "bad"},
    ):
        with pytest.raises(RlaxError, match="not an event of this version"):
            ev.decode(document)
    assert [ev.group_of(event) for event in EVENTS] == [
        *(None, 7, 7, 7, 8, None, 9, None, None),
        *(5, 5),
    ]


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunFiles]:
    if request.param == "local":
        yield RunFiles(tmp_path / "run")
        return
    yield RunFiles("memory://records/run")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("linked", [True, False])
def test_a_file_is_created_once(files: RunFiles, monkeypatch, linked: bool) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)

    if not linked:  # as in a bucket that is mounted
        monkeypatch.setattr(os, "link", no_link)
    assert files.create("journal/1.json", b"one")
    assert not files.create("journal/1.json", b"another one")
    assert files.create("journal/1.json", b"one")  # the answer to a first request was lost
    assert files.get("journal/1.json") == b"one"
    if files.is_local:  # no temporary file is left
        assert os.listdir(files.location("journal")) == ["1.json"]


def test_one_of_many_creates_a_file(tmp_path: Path) -> None:
    files, begin = RunFiles(tmp_path), threading.Barrier(8)

    def create(number: int) -> bool:
        begin.wait(60)
        return files.create("one", b"%d" % number)

    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(create, range(8)))
    assert created.count(True) == 1
    assert files.get("one") == b"%d" % created.index(True)


def test_a_directory_is_made_again_only_if_that_is_wanted(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run", makes_root=False)
    for write in (files.put, files.create):
        with pytest.raises(FileNotFoundError):
            write("journal/00000/1.json", b"one")
        with pytest.raises(FileNotFoundError):
            write("summary.json", b"one")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    files.put("journal/00000/1.json", b"one")
    assert files.get("journal/00000/1.json") == b"one"


def test_what_a_killed_process_left_is_no_file(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.put(journal.segment_name(1), b"{}")
    directory = tmp_path / "journal/00000"
    (directory / ".00000002.json.77").write_bytes(b"{")
    assert files.names("journal/00000") == ["00000001.json"] and journal.last_number(files) == 1


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    (tmp_path / "journal").write_text("a file in the way")
    with pytest.raises(RlaxError, match=r"journal/1\.json cannot be written"):
        files.put("journal/1.json", b"")
    (tmp_path / "samples").mkdir()
    with pytest.raises(RlaxError, match="samples cannot be read"):
        files.get("samples")
    with pytest.raises(ConfigError, match="base_output_directory = 'nowhere://run'"):
        RunFiles("nowhere://run")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "config.yml")
    reading = on_daemon(lambda: RunFiles(tmp_path).get("config.yml"), "reader")
    try:
        with pytest.raises(RlaxError, match=r"config\.yml cannot be read: .*no ordinary file"):
            reading.result(30)
    finally:
        with suppress(OSError):  # nobody reads it
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_directory_that_does_not_exist_is_no_run_for_that_reason(tmp_path: Path) -> None:
    for place, why in ((tmp_path, "it has no config.yml"), (tmp_path / "b", "there is no such")):
        with pytest.raises(ConfigError, match=f"is not a run directory: {why}"):
            RunFiles(place).config()


# --- journal -------------------------------------------------------------------------------------


def segment(files: RunFiles, number: int) -> Path:
    return Path(files.location(journal.segment_name(number)))


def test_a_journal_comes_back(files: RunFiles) -> None:
    history = History()
    history.write(files)
    found = list(journal.read(files))
    assert [s.number for s, _ in found] == [1, 2, 3, 4, 5]
    assert [s.step for s, _ in found] == [1, 2, None, 3, None]
    for (one, _), draft in zip(found, history.segments, strict=True):
        assert list(one.events) == draft.events
        recorded = journal.read_samples(files, one)
        batch = as_batch(one.step or 0, recorded)
        assert bits(batch) == bits(batch_of(draft.step or 0, draft.batch or []))
        others = [found.judged for found in recorded if found.advantages is None]
        assert bits(others) == bits(draft.others)
    checksums = [checksum for _, checksum in found]
    assert [s.previous for s, _ in found] == ["00000000", *checksums[:-1]]
    assert list(journal.read(files, after=3, previous=checksums[2])) == found[3:]
    assert list(journal.read(files, until=2)) == found[:2]
    with pytest.raises(JournalError, match=r"segment 3: has checksum .*, but segment 4 follows"):
        list(journal.read(files, after=3, previous=checksums[1]))


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    files = RunFiles(tmp_path)
    History().write(files)
    return files


def broken(files: RunFiles) -> tuple[int, str]:
    """Where reading the journal ends, and why."""
    with pytest.raises(JournalError) as caught:
        list(journal.read(files))
    return caught.value.number, str(caught.value)


def test_a_torn_segment_is_noticed(run: RunFiles) -> None:
    data = segment(run, 5).read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 3):
        segment(run, 5).write_bytes(data[:length])
        number, message = broken(run)
        assert (number, "is damaged" in message) == (5, True)
    run.put_json(journal.segment_name(5), {"segment": 5})
    assert "is damaged" in broken(run)[1]


def test_exchanged_segments_are_noticed(run: RunFiles) -> None:
    third = segment(run, 3).read_bytes()
    segment(run, 3).write_bytes(segment(run, 4).read_bytes())
    assert broken(run) == (3, "journal segment 3: contains the number 4 instead of its own")
    # A segment of another run, with the right number: the next one names another checksum.
    document = {**json.loads(third), "previous": "0badc0de"}
    del document["crc32c"]
    run.put(journal.segment_name(3), sealed(json.dumps(document)))
    number, message = broken(run)
    assert (number, "but segment 3 follows one with checksum 0badc0de" in message) == (2, True)


def test_a_changed_segment_is_noticed(run: RunFiles) -> None:
    third = segment(run, 3).read_bytes()
    for place in range(0, third.rindex(b', "crc32c": '), 7):
        segment(run, 3).write_bytes(third[:place] + bytes([third[place] ^ 1]) + third[place + 1 :])
        with pytest.raises(JournalError, match=r"^journal segment 3: "):
            journal.read_one(run, 3)


def test_files_of_a_segment_are_those_that_were_committed(run: RunFiles) -> None:
    found = [s for s, _ in journal.read(run)]
    second = found[1]
    (file,) = second.samples
    assert file.name == "samples/00000/00000002.parquet"

    def with_file(**changes: Any) -> Segment:
        return dataclasses.replace(second, samples=(dataclasses.replace(file, **changes),))

    with pytest.raises(JournalError, match=r"segment 2: .*the file has changed"):
        journal.read_samples(run, with_file(name=journal.samples_name(4)))
    with pytest.raises(JournalError, match="holds 6 rows, not 3"):
        journal.read_samples(run, with_file(rows=3))
    run.put("samples/x", b"not Parquet")
    nonsense = FileRecord("samples/x", 6, journal.checksum(b"not Parquet"))
    with pytest.raises(JournalError, match="segment 2: samples/x is damaged"):
        journal.read_samples(run, dataclasses.replace(second, samples=(nonsense,)))
    run.delete(file.name)
    with pytest.raises(JournalError, match=r"segment 2: samples/.*00000002\.parquet is missing"):
        journal.read_samples(run, second)
    assert journal.read_samples(run, dataclasses.replace(second, samples=())) == []


def test_a_segment_of_a_format_to_come_is_named(run: RunFiles) -> None:
    document = json.loads(segment(run, 5).read_bytes())
    del document["crc32c"]
    run.put(journal.segment_name(5), sealed(json.dumps(document | {"format": 7})))
    number, message = broken(run)
    assert (number, "its format is 7, expected 6" in message) == (5, True)


# --- numbers of five digits ----------------------------------------------------------------------


def test_a_thousand_segments_lie_in_a_directory(files: RunFiles) -> None:
    """Segments 998 to 2001, after one that a run went on from."""
    assert journal.segment_name(999) == "journal/00000/00000999.json"
    assert journal.segment_name(1000) == "journal/00001/00001000.json"
    assert journal.samples_name(123_456) == "samples/00123/00123456.parquet"
    checksum, checksums, judged = "12345678", {}, History().groups[0]
    for number in [*range(998, 1002), *range(1998, 2002)]:
        previous = checksums.get(number - 1, checksum)
        checksums[number] = journal.write(
            files,
            number=number,
            previous=previous,
            step=number,
            batch=samples.of_batch(batch_of(number, [judged])),
            others=None,
            events=[ev.encode(ev.Resumed(number))],
        )
    assert files.names("journal") == files.names("samples") == ["00000", "00001", "00002"]
    assert journal.last_number(files) == 2001
    assert journal.numbers(files, journal.SAMPLES) == [998, 999, 1000, 1001, 1998, 1999, 2000, 2001]
    for above, first in ((998, 999), (999, 1000), (1000, 1001), (1999, 2000), (2000, 2001)):
        assert journal.numbers(files, journal.SAMPLES, above)[0] == first
    assert journal.numbers(files, journal.SAMPLES, 2001) == []
    found = list(journal.read(files, after=997, previous=checksum, until=1001))
    assert [(s.number, s.step) for s, _ in found] == [(n, n) for n in range(998, 1002)]
    assert [c for _, c in found] == [checksums[n] for n in range(998, 1002)]
    assert journal.read_one(files, 1999).events == (ev.Resumed(1999),)
    assert journal.sample_files(files)[3] == "samples/00001/00001001.parquet"
    # With one missing, reading ends there and says so.
    files.delete(journal.segment_name(2000))
    with pytest.raises(JournalError, match="segment 2000: is missing, but later segments exist"):
        list(journal.read(files, after=1998, previous=checksums[1998]))
    # A thousand that holds only temporary files, or nothing, is no thousand.
    files.delete(journal.segment_name(2001))
    assert journal.last_number(files) == 1999


@pytest.mark.parametrize("late", [False, True])
def test_a_segment_of_another_process_is_not_replaced(files, monkeypatch, late: bool) -> None:
    def write(step: int) -> None:
        batch = samples.of_batch(batch_of(step, [History().groups[0]]))
        head: dict[str, Any] = {"number": 1, "previous": journal.START, "step": step}
        journal.write(files, **head, batch=batch, others=None, events=[ev.encode(ev.Resumed(step))])

    def written_by_another(point: FaultPoint) -> None:
        if point is FaultPoint.SAMPLES_WRITTEN:
            monkeypatch.setattr(journal, "reached", lambda point: None)
            files.put(journal.segment_name(1), b"of another")

    if late:
        monkeypatch.setattr(journal, "reached", written_by_another)
    else:
        write(1)
    names = (
        [journal.segment_name(1)] if late else [journal.segment_name(1), journal.samples_name(1)]
    )
    contents = [b"of another"] if late else [files.get(name) for name in names]
    with pytest.raises(JournalError, match="segment 1: was written by another process"):
        write(2)
    assert [files.get(name) for name in names] == contents


@pytest.mark.parametrize("command", ["audit", "report", "train"])
def test_records_of_an_earlier_format_are_one_clear_error(tmp_path: Path, command: str) -> None:
    run = RunFiles(tmp_path / "old")
    for name, text in (("config.yml", "{}"), ("config.json", '{"config_hash": "abc"}')):
        run.put(name, text.encode())
    run.put("journal/00000001.json", b"{}")
    where = [run.url]
    if command == "train":
        config = Path(__file__).parents[3] / "configs/testing.yml"
        where = [str(config), f"base_output_directory={tmp_path}", "run_name=old"]
    done = rlax(command, *where)
    said = " ".join(done.stderr.split())
    assert done.exit_code != 0
    assert said.startswith(f"error: {run.url} was recorded in an earlier format, ")
    assert "only format 6 can be read or continued" in said
    assert {path.name for path in tmp_path.glob("old/*")} == {
        "config.json",
        "config.yml",
        "journal",
    }
