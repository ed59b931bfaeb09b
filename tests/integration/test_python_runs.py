"""Runs that ``rlax_plugin.train`` starts, with the toy policy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from planted import plant
from runs import CONFIG, HELPERS, lines
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


def until_step(run: rlax_plugin.Run, step: int) -> None:
    wait_until(lambda: run.progress.step >= step, f"step {step}", limit_s=DEADLINE_S)


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


@pytest.mark.long
def test_a_run_is_stopped_continued_and_read(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def start() -> rlax_plugin.Run:
        slow = {"rlax.seed": 3, "rlax.trainer.train_s": 0.2}  # it is stopped before its end
        return rlax_plugin.train(model=CONFIG, steps=60, name="toy", config=slow)

    run = start()
    assert run.status == "starting"
    until_step(run, 2)
    assert run.status == "running" and run.progress.steps == 60
    elsewhere = rlax_plugin.open("runs/toy")
    assert elsewhere.status == "running"
    assert elsewhere.stop(DEADLINE_S) == "stopped"
    assert run.wait(DEADLINE_S) == "stopped"
    assert "toy: stopped, step " in capsys.readouterr().out
    trained = run.metrics().num_rows
    assert 2 <= trained < 60
    log = Path("configs/toy/train.log").read_text()
    assert f"interrupted after step {trained}" in log

    assert start().wait(DEADLINE_S) == "complete"
    assert elsewhere.status == "complete"
    metrics = elsewhere.metrics()
    assert metrics["step"].to_pylist() == list(range(1, 61))
    rows = elsewhere.samples(["step", "state", "group", "sample", "reward"]).to_pylist()
    assert len({(row["group"], row["sample"]) for row in rows}) == len(rows)
    trained_rewards = [r["reward"] for r in rows if (r["state"], r["step"]) == ("trained", 60)]
    assert len(trained_rewards) == 16
    assert sum(trained_rewards) / 16 == metrics["reward/mean"].to_pylist()[-1]
    assert "rollouts" in run.report().read_text()


@pytest.mark.long
def test_a_run_that_fails_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    settings = {"rlax.plugins": ["rlax_plugin.testing", "faulty_parts"]}
    settings["rlax.trainer"] = {"name": "faulty", "fail_at": 2}
    run = rlax_plugin.train(model=CONFIG, steps=5, config=settings)
    with pytest.raises(rlax_plugin.CommandError) as caught:
        run.wait(DEADLINE_S)
    assert run.status == "failed" and caught.value.status == 1
    assert str(caught.value).startswith("rlax train failed: ")
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)
    run = rlax_plugin.train(model=CONFIG, steps=4000)
    until_step(run, 1)
    (process,) = [one for one in [run._started] if one is not None]
    process._process.kill()
    with pytest.raises(rlax_plugin.CommandError, match=r"the signal SIGKILL ended it; .*train.log"):
        run.wait(DEADLINE_S)


SCRIPT = """
import signal, sys
import rlax_plugin
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
run = rlax_plugin.train(model=sys.argv[1], steps=4000, name="toy")
run.wait(show=False)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_stops_with_the_process_that_started_it(directory: Path, number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, CONFIG],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as script:
        try:
            metrics = directory / "runs/toy/metrics.jsonl"
            wait_until(lambda: len(lines(metrics)) > 1, "two steps", limit_s=DEADLINE_S)
            run = rlax_plugin.open("runs/toy")
            assert run.status == "running"
            os.kill(script.pid, number)
            out, _ = script.communicate(timeout=DEADLINE_S)
        finally:
            script.kill()  # which ends the run as well
    if number == signal.SIGINT:  # the script has waited for the end
        assert run.status == "stopped" and "stopping after this step" in out
        assert "KeyboardInterrupt" in out
    assert run.wait(DEADLINE_S, show=False) == "stopped"
    summary = json.loads((directory / "runs/toy/summary.json").read_text())
    assert summary["steps"] == run.metrics().num_rows >= 1
    assert (directory / "runs/toy/checkpoints").is_dir()
