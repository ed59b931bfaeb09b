"""The file of spans: what a line has, how many at most, and that a resumed step replaces it."""

import json
import time

import pytest

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics.spans import Span, SpansFile, bounded, merged, read


def test_intervals_are_united_and_the_smallest_gaps_closed():
    intervals = [(5.0, 6.0), (0.0, 1.0), (0.5, 2.0), (2.5, 3.0), (9.0, 9.5)]
    assert merged(intervals, 9) == [(0.0, 2.0), (2.5, 3.0), (5.0, 6.0), (9.0, 9.5)]
    assert merged(intervals, 3) == [(0.0, 3.0), (5.0, 6.0), (9.0, 9.5)]
    assert merged(intervals, 1) == [(0.0, 9.5)]
    assert merged([], 1) == []


def test_a_step_of_many_groups_and_workers_has_few_spans():
    scored = [Span("rewards", "scores groups", float(i), i + 0.5) for i in range(1000)]
    assert len(bounded(scored, 2)) == 32
    calls = [
        Span(f"worker {worker}", "generates", float(i), i + 0.5)
        for worker in range(128)
        for i in range(10)
    ]
    found = bounded(calls, 128)
    assert len(found) == 256 and len({span.lane for span in found}) == 128
    assert [s.began_s for s in found] == sorted(s.began_s for s in found)


def test_times_are_unix_times_and_the_last_line_of_a_step_counts(tmp_path):
    file = SpansFile(RunFiles(tmp_path), tmp_path)
    now, unix = time.perf_counter(), time.time()
    waits = Span("trainer", "waits for the batch", now - 3, now - 1)
    short = Span("trainer", "hands over weights", now - 1, now - 1 + 1e-6)
    file.add(1, now - 2, now, [waits, short])
    file.add(2, now, now + 1, [])
    file.add(1, now - 1, now, [])  # by a resumed process
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert lines[0]["spans"] == [["trainer", "waits for the batch", -1.0, 2.0]]
    assert lines[0]["from_s"] == pytest.approx(unix - 2, abs=1)
    content = (tmp_path / "spans.jsonl").read_bytes()
    assert [(one.step, len(one.spans)) for one in read(content)] == [(1, 0), (2, 0)]
    (first,) = read(content.splitlines(keepends=True)[0] + b"{}\nnot JSON\n")
    assert first.ended_s - first.began_s == pytest.approx(2)
    (span,) = first.spans
    assert span.began_s == pytest.approx(first.began_s - 1) and span.ended_s - span.began_s == 2


def test_a_disk_that_cannot_be_written_does_not_end_a_run(tmp_path, caplog):
    file = SpansFile(RunFiles(tmp_path / "nowhere"), tmp_path)
    for step in (1, 2):
        file.add(step, 0.0, 1.0, [])
    (said,) = caplog.messages
    assert "spans.jsonl is incomplete from step 1 on" in said
