"""The trace of who was busy when; the charts of machines."""

import json

import pytest
from typer.testing import CliRunner

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands.report import charts
from rlax_plugin.tools.commands.report.run import RunData

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


def test_the_trace_is_what_chrome_reads(files, tmp_path):
    out = tmp_path / "trace.json"
    result = CliRunner().invoke(app, ["report", files.location(), "--trace", str(out)])
    assert (result.exit_code, result.output) == (0, f"{out}\n")
    trace = json.loads(out.read_text())
    events = trace["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == [
        "steps", "trainer", "controller", "rewards", "worker w0 generates",
        "worker w0 loads weights", "worker w1 generates",
    ]  # fmt: skip
    whole = [e for e in events if e["ph"] == "X"]
    assert len(whole) == 8 + 2 and all(e["pid"] == 1 for e in whole)
    assert trace["otherData"] == {"run": "mine", "began_unix_s": 1000.0}
    (scores,) = (e for e in whole if threads[e["tid"]] == "rewards")
    assert (scores["name"], scores["ts"], scores["dur"]) == ("scores groups", 14e6, 1e6)
    steps = [e for e in whole if e["tid"] == 1]
    assert [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in steps] == [
        ("step 1", 0, 10),
        ("step 2", 10, 10),
    ]
    result = CliRunner().invoke(app, ["report", files.location(), "--trace", str(out), "--watch"])
    assert result.exit_code == 2 and "--trace" in result.output


def test_a_run_without_spans_has_no_trace(files, tmp_path):
    files.delete("spans.jsonl")
    command = ["report", files.location(), "--trace", str(tmp_path / "trace.json")]
    result = CliRunner().invoke(app, command)
    assert "spans.jsonl does not exist: no step has ended yet" in result.output
    assert result.exit_code == 1 and not (tmp_path / "trace.json").exists()


def test_machines_have_a_chart_for_each_figure_with_a_line_for_each_process():
    metrics = {"step": [1.0, 2.0], "machine/trainer_cpu": [0.5, 1.0]}
    metrics |= {"machine/workers_cpu": [2.0, 3.0], "machine/workers_read_bytes_per_s": [0.0, 9.0]}
    found = charts.sections([RunData("a", "a", metrics=metrics)])
    made = {c.key: c.figure.data for s in found for c in s.charts}
    captions = {c.key: c.caption for s in found for c in s.charts}
    assert captions["machine-cpu"] == "of trainer and of workers"
    lines = {t.name: list(t.y) for t in made["machine-cpu"] if t.y is not None}
    assert lines == {"trainer": [0.5, 1.0], "workers": [2.0, 3.0]}
    assert [list(t.y) for t in made["machine-read_bytes_per_s"]] == [[0.0, 9.0]]
