"""Metrics and evaluations on disk, after steps were done again."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
from pytest import fixture

from rlax_plugin.controller.evaluated import Evaluated, record, recorded
from rlax_plugin.controller.metrics_file import MetricsFile
from rlax_plugin.records.files import RunFiles
from rlax_plugin.statistics import Estimate


@fixture(autouse=True)
def empty_store():
    yield
    fsspec.filesystem("memory").store.clear()


def lines(text: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in text.splitlines()]


def test_metrics_are_cut_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = [json.dumps({"step": s, "loss": float(s)}) for s in (1, 2, 3, 4)]
    path.write_text("\n".join(written) + '\n{"step": 5, "lo')  # killed while it wrote
    metrics = MetricsFile(RunFiles(tmp_path), tmp_path / "elsewhere")
    assert [m["step"] for m in metrics.rewind(2)] == [1, 2]
    metrics.add(3, {"loss": 30.0})
    metrics.close()
    assert lines(path.read_text()) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 2.0},
        {"step": 3, "loss": 30.0},
    ]


def test_metrics_of_a_run_on_an_object_store_are_uploaded_and_found_again(tmp_path: Path) -> None:
    files = RunFiles("memory://metrics/run")
    metrics = MetricsFile(files, tmp_path / "one")
    assert metrics.rewind(0) == []
    metrics.add(1, {"loss": 1.0})
    metrics.upload()
    metrics.add(2, {"loss": 2.0})
    metrics.close()
    assert lines(files.get("metrics.jsonl").decode()) == [{"step": 1, "loss": 1.0}]
    # On another machine nothing is left but what was uploaded.
    again = MetricsFile(files, tmp_path / "another")
    assert again.rewind(1) == [{"step": 1, "loss": 1.0}]
    again.close()


def test_a_recorded_evaluation_belongs_to_its_version(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    estimate = Estimate(value=0.5, ci95=(0.4, 0.6), problems=8, n=4)
    found = Evaluated(10, {"test": {"pass_at_1": estimate, "length_mean": estimate}})
    record(files, "after", found)
    assert recorded(files, "after") == recorded(files, "after", version=10) == found
    assert recorded(files, "after", version=20) is None
    assert recorded(files, "before") is None
    document = files.get_json("evaluation/after.json")
    assert document["version"] == document["step"] == 10
    assert document["pass_at_1"]["value"] == 0.5 and "length_mean" not in document
