"""What is written down comes back bit for bit, and what is damaged is noticed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from histories import History, bits, group, in_batch, rejected, rollout

from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal, samples
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.journal import FileRecord, JournalError
from rlax_plugin.records.samples import ScoredGroup
from rlax_plugin.types import Group

EVENTS = [
    ev.Issued(7, ("a", 'quote " and \n line'), 3),
    ev.Reissued(7, 2, "worker lost"),
    ev.Generated(7, 2, "w0", 3, 4, 8, 120),
    ev.Scored(7, 5, 8, None),
    ev.Scored(8, 0, 0, "all rewards failed"),
    ev.Trained(5, (7, 9), 2),
    ev.Dropped(9, "too stale"),
    ev.Published(5, "0badc0de"),
    ev.Resumed(4),
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
    assert [ev.group_of(event) for event in EVENTS] == [None, 7, 7, 7, 8, None, 9, None, None]


# --- samples -------------------------------------------------------------------------------------


def odd(number: int) -> Group:
    """A group of values that are easily lost: NaN, -0.0, 64 bits, nothing at all."""
    extremes = {
        "tokens": np.array([-(2**31), 2**31 - 1, 0], np.int32),
        "logprob_full": np.array(
            [-0.0, np.nextafter(np.float32(-1), np.float32(0)), -np.inf], "f4"
        ),
        "logprob_sampled": np.array([1e-45, np.nan, -3.4e38], np.float32),
    }
    return group(
        number,
        0,
        "p\u00e9",
        rollouts=(
            rollout(number, 0, [0, 1, 1], seed=2**64 - 1, reward=0.1 + 0.2,
                    reward_parts=(0.1, 0.2, -0.0), **extremes),
            rollout(
                number, 1, [], reward=None, reward_error="timed out", finish_reason="cancelled"
            ),
        ),
        advantages=np.array([np.nextafter(1.0, 2.0), -0.0]),
        measured_pass_rate=None,
    )  # fmt: skip


JUDGED: list[ScoredGroup] = [
    (odd(4), None),
    rejected(2, 1, "c", "too easy"),
    (group(3, 1, "d"), None),
]


def test_samples_come_back_bit_for_bit() -> None:
    table = samples.to_table(JUDGED)
    assert table.num_rows == 6
    parquet = samples.from_parquet(samples.to_parquet(1, table), "file")
    arrow = samples.from_table(samples.from_arrow(samples.to_arrow(table)))
    assert bits(parquet) == bits(arrow) == bits(JUDGED)
    again = samples.to_parquet(1, samples.to_table(parquet))
    assert again == samples.to_parquet(1, table)  # the same file, so the same checksum


def test_a_table_is_made_of_nothing_as_well() -> None:
    empty = samples.to_table([])
    assert (empty.num_rows, samples.from_table(empty)) == (0, [])
    assert samples.from_parquet(samples.to_parquet(1, empty), "file") == []


def test_groups_are_selected_in_the_order_asked_for() -> None:
    table = samples.to_table(JUDGED)
    chosen = samples.from_table(samples.select(table, [3, 4]))
    assert bits(chosen) == bits([JUDGED[2], JUDGED[0]])
    assert samples.select(table, []).num_rows == 0
    with pytest.raises(KeyError):
        samples.select(table, [3, 5])


def test_a_file_of_something_else_is_damaged() -> None:
    whole = samples.to_parquet(1, samples.to_table(JUDGED))
    lacking = samples.to_parquet(1, samples.to_table(JUDGED).drop(["versions"]))
    for data in (b"", b"PAR1", whole[: len(whole) // 2], lacking):
        with pytest.raises(RlaxError, match=r"rollouts/1\.parquet is damaged"):
            samples.from_parquet(data, "rollouts/1.parquet")


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunFiles]:
    if request.param == "local":
        yield RunFiles(tmp_path / "run")
        return
    yield RunFiles("memory://records/run")
    fsspec.filesystem("memory").store.clear()


def test_files_are_put_read_listed_and_removed(files: RunFiles) -> None:
    assert files.names("journal") == [] and not files.exists("journal/2.json")
    files.put("journal/2.json", b"two")
    files.put("journal/1.json", b"one")
    files.put("journal/1.json", b"another one")
    assert files.names("journal") == ["1.json", "2.json"]
    assert (files.get("journal/1.json"), files.exists("journal/2.json")) == (b"another one", True)
    files.delete("journal/1.json")
    files.delete("journal/1.json")
    assert files.names("journal") == ["2.json"]
    files.delete("journal")
    assert files.names("journal") == []
    with pytest.raises(FileNotFoundError):
        files.get("journal/2.json")


def test_documents(files: RunFiles) -> None:
    assert files.get_json("config.json") is None
    files.put_json("config.json", {"seed": 1})
    assert files.get_json("config.json") == {"seed": 1}
    files.put("config.json", b'{"seed"')
    with pytest.raises(RlaxError, match=r"run/config\.json is damaged"):
        files.get_json("config.json")


def test_what_a_killed_process_left_is_no_file(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.put("journal/00000001.json", b"{}")
    (tmp_path / "journal/.00000002.json.77").write_bytes(b"{")
    assert files.names("journal") == ["00000001.json"] and journal.last_number(files) == 1


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    (tmp_path / "journal").write_text("a file in the way")
    with pytest.raises(RlaxError, match=r"journal/1\.json cannot be written"):
        files.put("journal/1.json", b"")
    (tmp_path / "batches").mkdir()
    with pytest.raises(RlaxError, match="batches cannot be read"):
        files.get("batches")
    with pytest.raises(ConfigError, match="base_output_directory = 'nowhere://run'"):
        RunFiles("nowhere://run")


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
        assert bits(journal.read_samples(files, one, one.batch)) == bits(
            [in_batch(judged) for judged in draft.batch or []]
        )
        assert bits(journal.read_samples(files, one, one.rollouts)) == bits(draft.others)
    checksums = [checksum for _, checksum in found]
    assert [s.previous for s, _ in found] == ["00000000", *checksums[:-1]]
    assert list(journal.read(files, after=3, previous=checksums[2])) == found[3:]
    assert list(journal.read(files, until=2)) == found[:2]
    with pytest.raises(JournalError, match="segment 4: follows a segment with checksum"):
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


def test_a_missing_segment_is_noticed(run: RunFiles) -> None:
    segment(run, 2).unlink()
    assert broken(run) == (2, "journal segment 2: is missing, but later segments exist")


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
    segment(run, 3).write_bytes(third.replace(b'"d2"', b'"e2"'))
    number, message = broken(run)
    assert (number, "follows a segment with checksum" in message) == (4, True)


def test_files_of_a_segment_are_those_that_were_committed(run: RunFiles) -> None:
    found = [s for s, _ in journal.read(run)]
    second = found[1]
    assert second.batch is not None
    other = dataclasses.replace(second.batch, name="batches/00000003.parquet")
    with pytest.raises(JournalError, match=r"segment 2: .*the file has changed"):
        journal.read_samples(run, second, other)
    fewer = dataclasses.replace(second.batch, samples=3)
    with pytest.raises(JournalError, match="holds 4 samples, not 3"):
        journal.read_samples(run, second, fewer)
    run.put("batches/x", b"not Parquet")
    nonsense = FileRecord("batches/x", 4, journal.checksum(b"not Parquet"))
    with pytest.raises(JournalError, match="segment 2: batches/x is damaged"):
        journal.read_samples(run, second, nonsense)
    run.delete("batches/00000002.parquet")
    with pytest.raises(JournalError, match=r"segment 2: batches/00000002\.parquet is missing"):
        journal.read_samples(run, second, second.batch)
    assert journal.read_samples(run, second, None) == []
