"""A run that keeps the samples of its last steps only: killed, resumed, and then looked at."""

from __future__ import annotations

import signal
from pathlib import Path

import command_line
import pytest
from runs import Run

from rlax_plugin.commands.audit import audit
from rlax_plugin.records import journal
from rlax_plugin.records.faults import VARIABLE, FaultPoint
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.pruned import read_pruned
from rlax_plugin.resume.snapshots import snapshot_steps

SETTINGS = (
    "steps=12",
    "rlax.trainer.checkpoint_every=2",
    "rlax.retention.samples_steps=3",
    "rlax.evaluation.problems=0",
)


def rlax(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """A command that only reads records, in this process: its status, and what it printed."""
    capfd.readouterr()
    done = command_line.rlax(*arguments)
    out, error = capfd.readouterr()
    return done.exit_code, done.stdout + out, done.stderr + error


def kept_steps(files: RunFiles) -> list[int]:
    numbers = journal.numbers(files, journal.SAMPLES)
    steps = (journal.read_one(files, number).step for number in numbers)
    return [step for step in steps if step is not None]


@pytest.mark.long
def test_old_samples_go_and_a_resume_finds_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What a run keeps does not decide what it computes: the limit is set while the run goes on.
    run = Run(tmp_path, *SETTINGS, "rlax.retention.samples_steps=null", "steps=4")
    status, out = run.end()
    assert status == 0, out
    assert kept_steps(RunFiles(run.dir)) == [1, 2, 3, 4]

    # The newest checkpoint is that of step 8. When samples were removed last, after the snapshot
    # of step 8, it was that of step 6: what this one and that of step 4 need is there.
    monkeypatch.setenv(VARIABLE, f"{FaultPoint.SNAPSHOT_WRITTEN}:3")
    run = Run(tmp_path, *SETTINGS)
    status, out = run.end()
    assert status == -signal.SIGKILL, out
    files = RunFiles(run.dir)
    assert kept_steps(files) == [5, 6, 7, 8, 9, 10]
    assert read_pruned(files).step == 4
    monkeypatch.delenv(VARIABLE)
    status, out = Run(tmp_path, *SETTINGS).end()
    assert status == 0, out
    assert "steps 9 to 10 are trained again, on their recorded batches" in out
    # After the snapshot of step 12, what the checkpoints of steps 8 and 10 need is left.
    assert kept_steps(files) == [9, 10, 11, 12]
    assert read_pruned(files).step == 8
    assert snapshot_steps(files) == [2, 4, 6, 8, 10, 12]  # this trainer keeps its checkpoints

    report = audit(files)
    assert report.violation is None, report.violation
    (warning,) = report.warnings
    assert warning.startswith("the samples of steps 1 to 8 are not kept (rlax.retention): of ")
    figures = report.figures
    assert (figures.steps, figures.trained, figures.samples) == (12, 12 * 4, 12 * 4 * 4)
    # As whole as the samples had been there: every step's tokens are in its metrics, too.
    trained = sum(step["train/tokens"] for step in run.steps())
    assert figures.tokens == trained

    monkeypatch.chdir(tmp_path)
    status, out, error = rlax(capfd, "audit", "runs/testing")
    assert (status, error) == (0, "")
    assert "warning: the samples of steps 1 to 8 are not kept" in out
    status, out, error = rlax(capfd, "replay", "runs/testing")
    assert (status, out) == (2, "")
    assert error == (
        "error: RUN = 'runs/testing': cannot be replayed from its first step: the samples of steps "
        "1 to 8 are not kept (rlax.retention)\n"
    )
    status, out, error = rlax(capfd, "report", "runs/testing")
    assert status == 0, out + error
    page = (run.dir / "report.html").read_text()
    assert "the samples of steps 1 to 8 are not kept (rlax.retention)" in page
