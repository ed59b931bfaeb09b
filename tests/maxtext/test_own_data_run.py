"""The two commands of docs/your_data.md, with few steps: from a file to a trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_sets import write_lines
from documents import fences, read
from processes import finished

FEW = ["--steps", "2", "--groups-per-step", "4", "--group-size", "4", "--workers", "1"]


@pytest.mark.long
@pytest.mark.timeout(500)
def test_ones_own_file_and_function_train_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"question": f"Say {n}.", "answer": n} for n in range(60)]
    write_lines(tmp_path / "questions.jsonl", rows)
    (tmp_path / "rewards.py").write_text(fences(read("your_data.md"), "python")[0])
    given = ["--data", "questions.jsonl", "--reward", "rewards.py:correct", *FEW]
    everything = "rlax.curation.filters=[]"  # such a short warm start leaves nothing to tell apart
    for arguments in (
        ["init", "mine.yml", *given],
        ["train", "mine.yml", "rlax.trainer.warm_start.steps=4", everything],
    ):
        done = finished(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    assert summary["complete"] and summary["steps"] == 2
    assert {"before", "after"} <= summary["evaluation"].keys()
    record = json.loads((tmp_path / "runs/mine/prepared/warm_start/warm_start.json").read_text())
    assert record["step"] == 4 and 0 <= record["pass_at_1"] < 0.28
