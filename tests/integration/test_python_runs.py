"""Runs that ``rlax_plugin.train`` starts: processes, which it watches and which end with it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from planted import plant
from runs import CONFIG, lines
from waiting import wait_until

import rlax_plugin
from rlax_plugin.tools.scripting import processes

DEADLINE_S = 200


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runs that a failed test has left are ended."""
    started: list[processes.Started] = []

    class Remembered(processes.Started):
        def __init__(self, *arguments: Path):
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr("rlax_plugin.tools.scripting.training.Started", Remembered)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for one in started:
        one.interrupt()
    assert all(one.ended(DEADLINE_S) for one in started)


@pytest.mark.slow
def test_a_run_is_watched_and_read(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trap = plant(directory)
    run = rlax_plugin.train(model=CONFIG, steps=5)
    assert run.status == "starting" and run.progress.steps == 5
    assert run.wait(DEADLINE_S, show=False) == "complete" and capsys.readouterr().out == ""
    assert run.wait(DEADLINE_S) == "complete"
    shown, summary = capsys.readouterr().out, Path(run.directory, "summary.json").read_text()
    assert "held-out evaluation" in shown and "pass@2" in shown
    assert " ".join(shown.split()).endswith(json.loads(summary)["verdict"]["sentence"])
    metrics = run.metrics()
    assert metrics["step"].to_pylist() == list(range(1, 6))
    rows = run.samples(["state", "reward"], steps=range(5, 6)).to_pylist()
    trained = [row["reward"] for row in rows if row["state"] == "trained"]
    assert len(trained) == 16
    assert sum(trained) / 16 == metrics["reward/mean"].to_pylist()[-1]
    run.evaluate(problems=2)
    assert not trap.exists(), trap.read_text()


SCRIPT = """
import sys
import rlax_plugin
rlax_plugin.train(model=sys.argv[1], steps=4000, name="toy").wait(show=False)
"""


@pytest.mark.long
def test_a_run_stops_with_the_process_that_started_it(directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, CONFIG], cwd=directory) as script:
        try:
            metrics = directory / "runs/toy/metrics.jsonl"
            wait_until(lambda: len(lines(metrics)) > 1, "two steps", limit_s=DEADLINE_S)
            run = rlax_plugin.open("runs/toy")
            assert run.status == "running"
        finally:
            script.kill()
    assert run.wait(DEADLINE_S, show=False) == "stopped"
    summary = json.loads((directory / "runs/toy/summary.json").read_text())
    assert summary["steps"] == run.metrics().num_rows >= 1
    assert (directory / "runs/toy/checkpoints").is_dir()
