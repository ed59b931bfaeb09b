"""A run that an earlier version recorded, in format 1, is read as that version read it.

``tests/data/format1_run`` is what such a version left of six steps, which were interrupted once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import place

from rlax_plugin.commands.audit import Rule, audit
from rlax_plugin.commands.report.history import ACCEPTED
from rlax_plugin.commands.report.rollouts import read_rollouts
from rlax_plugin.commands.report.run import no_progress, read_run
from rlax_plugin.commands.report.write import write_report
from rlax_plugin.errors import RlaxError
from rlax_plugin.records import events as ev
from rlax_plugin.records import format1, journal, samples
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.read_samples import as_batch, from_table, rows_of
from rlax_plugin.types import Judged, Rejected, Score, group_of

RECORDED = Path(__file__).parents[2] / "data/format1_run"
# As the version that recorded the run said.
FIGURES = {
    "segments": 9,
    "steps": 6,
    "issued": 19,
    "trained": 12,
    "rejected": {"all rewards equal": 7},
    "dropped": {},
    "open": 0,
    "ready": 0,
    "samples": 24,
    "tokens": 106,
    "max_staleness": 2,
    "reissued": 0,
    "turns_discarded": 0,  # which was not counted then: there were none
    "restarts": 1,
}


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return RunFiles(shutil.copytree(RECORDED, tmp_path / "run"))


@pytest.fixture
def remote() -> Iterator[RunFiles]:
    """The same on an object store, which has no empty directories."""
    files = RunFiles("memory://format1/run")
    for path in RECORDED.rglob("*"):
        if path.is_file():
            files.put(str(path.relative_to(RECORDED)), path.read_bytes())
    yield files
    fsspec.filesystem("memory").store.clear()


def segments(files: RunFiles) -> list[journal.Segment]:
    return [segment for segment, _ in journal.read(files)]


def columns(name: str) -> dict[str, list[Any]]:
    """A file as it is, whatever this project says of it."""
    return pq.ParquetFile(RECORDED / name).read().to_pydict()


# --- the journal and its files -------------------------------------------------------------------


def test_the_journal_is_read_to_its_end(run: RunFiles) -> None:
    assert format1.is_format1(run)
    assert journal.last_number(run) == 9
    found = segments(run)
    assert [segment.step for segment in found] == [1, 2, 3, None, 4, 5, 6, None, None]
    assert [file.name for file in found[2].samples] == [
        "batches/00000003.parquet",
        "rollouts/00000003.parquet",
    ]
    generated = [e for e in found[2].events if isinstance(e, ev.Generated)]
    assert [(e.group, e.workers) for e in generated] == [
        (5, ("local-1",)), (7, ("local-1",)), (9, ("local-1",)), (10, ("local-1",)),
        (6, ("local-0",)), (8, ("local-0",)),
    ]  # fmt: skip
    assert ev.Trained(3, (6, 8), 2) in found[2].events


def test_samples_are_those_of_the_files(run: RunFiles) -> None:
    recorded = journal.read_samples(run, segments(run)[2])
    batch = as_batch(3, recorded)
    raw = columns("batches/00000003.parquet")
    assert [g.id for g in batch.groups] == [6, 8]
    assert raw["group_id"] == [6, 6, 8, 8] and raw["sample"] == [0, 1, 0, 1]
    episodes = [e for g in batch.groups for e in g.episodes]
    for row, episode in enumerate(episodes):
        (trajectory,) = episode.trajectories
        (turn,) = trajectory.turns
        sampled = turn.sampled
        assert turn.given.tolist() == raw["prompt_tokens"][row]
        assert sampled.tokens.tolist() == raw["tokens"][row]
        assert sampled.logprobs.tolist() == raw["logprob_full"][row]
        assert sampled.versions.tolist() == raw["versions"][row]
        assert (sampled.seed, sampled.finish) == (raw["seed"][row], raw["finish_reason"][row])
        assert sampled.workers == (raw["worker"][row],)
        assert episode.text == raw["completion"][row]
    assert [g.prompt.id for g in batch.groups] == raw["prompt_id"][::2]
    assert batch.groups[1].prompt.tokens.tolist() == raw["prompt_tokens"][2]
    scores = [s for g in batch.groups for s in g.scores]
    assert [s.total for s in scores if isinstance(s, Score)] == raw["reward"]
    assert np.concatenate(batch.advantages).tolist() == raw["advantage"]
    beside = [one.judged for one in recorded if one.advantages is None]
    reasons = columns("rollouts/00000003.parquet")["rejected"][::2]
    assert [j.reason if isinstance(j, Rejected) else None for j in beside] == reasons
    assert set(reasons) == {None, "all rewards equal"}


def test_a_sample_of_two_workers_and_one_without_a_reward(run: RunFiles) -> None:
    name = "rollouts/00000003.parquet"
    table = pq.ParquetFile(RECORDED / name).read()

    def with_first(table: pa.Table, column: str, value: Any) -> pa.Table:
        values = pa.array([value, *table[column].to_pylist()[1:]], table[column].type)
        return table.set_column(table.column_names.index(column), column, values)

    for column, value in (("worker", "a+b"), ("reward", None), ("reward_error", "it raised")):
        table = with_first(table, column, value)
    first = group_of(from_table(format1.upgraded_rows(name, table))[0].judged)
    assert [s.workers for s in first.sampled] == [("a", "b"), ("local-1",)]
    assert np.isnan(first.rewards).tolist() == [True, False]
    document = {"batch": None, "rollouts": None, "events": [
        {"event": "generated", "group": 1, "attempt": 2, "worker": "a+b", "oldest_version": 0,
         "newest_version": 1, "samples": 2, "tokens": 9},
    ]}  # fmt: skip
    upgraded = format1.upgraded_segment(document)
    assert upgraded["samples"] == []
    assert ev.decode(upgraded["events"][0]) == ev.Generated(1, 2, ("a", "b"), 0, 1, 2, 9)


def test_what_is_damaged_is_named(run: RunFiles) -> None:
    name = "batches/00000003.parquet"
    table = pq.ParquetFile(RECORDED / name).read()
    sink = pa.BufferOutputStream()
    pq.write_table(table.drop(["versions"]), sink)
    with pytest.raises(RlaxError, match=r"batches/00000003\.parquet is damaged: .*versions"):
        rows_of(sink.getvalue().to_pybytes(), name)
    run.delete("journal/00000004.json")
    assert place(audit(run)) == (Rule.JOURNAL_BROKEN, 4, None, None)


# --- what it takes now ---------------------------------------------------------------------------


def tables(judged: list[Judged], batch: Any) -> list[pa.Table]:
    found = [samples.of_batch(batch)] if batch.groups else []
    return found + ([samples.to_table(judged)] if judged else [])


def test_the_same_samples_need_fewer_bytes_now(run: RunFiles) -> None:
    """Measured: 32,622 bytes instead of 53,991."""
    before, after = 0, 0
    for segment in segments(run):
        sizes = [(RECORDED / file.name).stat().st_size for file in segment.samples]
        recorded = journal.read_samples(run, segment)
        beside = [one.judged for one in recorded if one.advantages is None]
        parts = tables(beside, as_batch(segment.step or 0, recorded))
        for size, part in zip(sizes, parts, strict=True):
            assert len(samples.to_parquet(1, part)) <= size
        if parts:
            before += sum(sizes)
            after += len(samples.to_parquet(1, samples.joined(parts)))
    assert after < 0.65 * before


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["run", "remote"])
def test_the_audit_says_what_it_said(where: str, request: pytest.FixtureRequest) -> None:
    files: RunFiles = request.getfixturevalue(where)
    report = audit(files)
    assert (report.violation, report.violations, report.warnings) == (None, {}, [])
    assert report.to_json()["figures"] == FIGURES


def test_the_audit_still_finds_what_was_changed(run: RunFiles) -> None:
    path = Path(run.location("batches/00000003.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert place(audit(run)) == (Rule.SAMPLES_DIFFER, 3, 3, None)


def test_the_report_shows_all_of_it(run: RunFiles) -> None:
    data = read_run(run)
    assert data.missing == []
    history = data.history
    assert history is not None and history.resumed == [3]
    outcomes = {step: dict(at.outcomes) for step, at in history.steps.items()}
    assert sum(at.get(ACCEPTED, 0) for at in outcomes.values()) == 12
    assert sum(at.get("all rewards equal", 0) for at in outcomes.values()) == 7
    rollouts = read_rollouts(run, data, no_progress)
    assert rollouts.shown == rollouts.recorded == 38  # 19 groups of two
    index = json.loads(rollouts.index)
    fates = [index["fates"][fate] for fate in index["columns"]["fate"]]
    assert {name: fates.count(name) for name in index["fates"]} == {
        "trained": 24,
        "rejected: all rewards equal": 14,
    }
    solved = {m.moment: m.estimate.value for m in data.measured if m.label == "pass@1"}
    assert solved == {"before": pytest.approx(8 / 24), "after": pytest.approx(13 / 24)}
    page = write_report(run.location()).read_text()
    assert "all 38 recorded" in page
