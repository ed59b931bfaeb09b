"""Who was busy in a step: its critical path, its trace, its chart; the charts of machines."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlax_plugin.cli import app
from rlax_plugin.commands.report import charts
from rlax_plugin.commands.report.busy import busy_chart, critical_path, read_busy
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics.spans import Span
from rlax_plugin.records.files import RunFiles

# Two steps of 10 s. The second generates from 10 to 14 on two workers, of which w1 is the slower;
# its group is scored until 15, the batch is written until 15.5, and the rest trains.
STEPS = [
    {"step": 1, "from_s": 1000.0, "to_s": 10.0, "spans": [["trainer", "trains", 0.0, 10.0]]},
    {
        "step": 2,
        "from_s": 1010.0,
        "to_s": 10.0,
        "spans": [
            ["trainer", "waits for the batch", 0.0, 5.5],
            ["worker w0", "generates", 0.0, 2.0],
            ["worker w1", "generates", 0.0, 4.0],
            ["worker w0", "loads weights", 2.5, 3.5],
            ["rewards", "scores groups", 4.0, 1.0],
            ["controller", "writes the batch", 5.0, 0.5],
            ["trainer", "trains", 5.5, 4.5],
        ],
    },
]


@pytest.fixture
def files(tmp_path) -> RunFiles:
    files = RunFiles(tmp_path / "mine")
    files.put_json("config.yml", {})
    lines = "".join(json.dumps(step) + "\n" for step in STEPS)
    files.put("spans.jsonl", f'{lines}{{"step": 3, "fr'.encode())
    return files


def test_the_critical_path_goes_back_to_what_ended_last(files):
    first, second = read_busy(files)
    assert [(s.lane, s.began_s, s.ended_s) for s in first.critical] == [("trainer", 1000, 1010)]
    assert [(s.lane, s.activity, s.began_s - 1010, s.ended_s - 1010) for s in second.critical] == [
        ("worker w1", "generates", 0, 4),
        ("rewards", "scores groups", 4, 5),
        ("controller", "writes the batch", 5, 5.5),
        ("trainer", "trains", 5.5, 10),
    ]


def test_work_that_goes_on_is_on_the_path_only_if_nothing_has_ended():
    trains = Span("trainer", "trains", 6.0, 10.0)
    scores = Span("rewards", "scores groups", 3.0, 5.95)  # within a hundredth of the step
    goes_on = Span("worker w0", "generates", -2.0, 12.0)
    path = critical_path([trains, scores, goes_on], 0.0, 10.0)
    assert path == [goes_on._replace(began_s=0.0, ended_s=3.0), scores, trains]
    # Nobody was busy from 2 to 6: the path has a gap.
    early = Span("worker w0", "generates", 1.0, 2.0)
    assert critical_path([trains, early], 0.0, 10.0) == [early, trains]
    assert critical_path([], 0.0, 10.0) == []


def test_the_trace_is_what_chrome_reads(files, tmp_path):
    out = tmp_path / "trace.json"
    result = CliRunner().invoke(app, ["report", files.location(), "--trace", str(out)])
    assert (result.exit_code, result.output) == (0, f"{out}\n")
    trace = json.loads(out.read_text())
    events = trace["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == [
        "critical path", "trainer", "controller", "rewards", "worker w0 generates",
        "worker w0 loads weights", "worker w1 generates",
    ]  # fmt: skip
    whole = [e for e in events if e["ph"] == "X"]
    assert len(whole) == 8 + 5 and all(e["pid"] == 1 for e in whole)
    assert trace["otherData"] == {"run": "mine", "began_unix_s": 1000.0}
    (scores,) = (e for e in whole if threads[e["tid"]] == "rewards")
    assert (scores["name"], scores["ts"], scores["dur"]) == ("scores groups", 14e6, 1e6)
    critical = [e for e in whole if e["tid"] == 1]
    assert [(e["name"], e["ts"] / 1e6, e["args"]) for e in critical[:2]] == [
        ("trains", 0, {"step": 1, "lane": "trainer"}),
        ("generates", 10, {"step": 2, "lane": "worker w1"}),
    ]
    result = CliRunner().invoke(app, ["report", files.location(), "--trace", str(out), "--watch"])
    assert result.exit_code == 2 and "--trace" in result.output


def test_a_run_without_spans_has_no_trace(files, tmp_path):
    files.delete("spans.jsonl")
    with pytest.raises(RlaxError, match=r"spans\.jsonl does not exist: no step has ended yet"):
        read_busy(files)
    command = ["report", files.location(), "--trace", str(tmp_path / "trace.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and not (tmp_path / "trace.json").exists()


def test_the_chart_has_a_lane_for_each_part_of_the_run(files):
    made = busy_chart(read_busy(files))
    assert made is not None and made.caption.startswith("Steps 1 to 2;")
    bars = {trace.name: trace for trace in made.figure.data}
    generates = bars["generates"]
    assert list(zip(generates.y, generates.base, generates.x, strict=True)) == [
        ("worker w0", 10, 2),
        ("worker w1", 10, 4),
    ]
    assert sum(bars["critical path"].x) == 20
    assert [shape.x0 for shape in made.figure.layout.shapes] == [10, 20]
    assert busy_chart([]) is None


def test_machines_have_a_line_for_each_process_or_the_extremes_of_many():
    def drawn(processes: int) -> dict[str, list[float]]:
        metrics = {"step": [1.0, 2.0]}
        for number in range(processes):
            metrics[f"machine/w{number}_cpu"] = [float(number), 2.0 * number]
        found = charts.sections([RunData("a", "a", metrics=metrics)])
        (chart,) = (c for s in found if s.title == "Time and machines" for c in s.charts)
        assert chart.key == "machine-cpu"
        return {t.name: list(t.y) for t in chart.figure.data if t.y[0] is not None}

    assert drawn(2) == {"w0": [0, 0], "w1": [1, 2]}
    assert drawn(9) == {"largest": [8, 16], "smallest": [0, 0]}
