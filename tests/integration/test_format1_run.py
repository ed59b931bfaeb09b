"""Commands on a run of an earlier version: real processes measure and train with what it left."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from runs import CONFIG, DEADLINE_S, ROOT

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

RECORDED = ROOT / "tests/data/format1_run"
LAST_DIGEST = "cea19a76"  # of version 6, as the version that recorded the run published it


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory whose ``runs/format1_run`` is the run."""
    shutil.copytree(RECORDED, tmp_path / "runs/format1_run")
    return tmp_path


def rlax(directory: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "rlax_plugin", *arguments]
    found = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return found.returncode, found.stdout, found.stderr


def overrides(directory: Path) -> list[str]:
    return json.loads((directory / "runs/format1_run/config.json").read_text())["overrides"]


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every path below a directory, and a file's content."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def test_its_checkpoint_is_measured_as_it_was(directory: Path) -> None:
    """The tokens follow from weights and seeds, so every figure is the one of then."""
    status, out, error = rlax(
        directory, "eval", "runs/format1_run/checkpoints/6.npz", "--json", "rlax.launcher.workers=1"
    )
    assert status == 0, out + error
    found = json.loads(out)
    after = json.loads((RECORDED / "evaluation/after.json").read_text())
    assert found["pass_at_1"]["value"] == pytest.approx(13 / 24)
    assert {key: found[key] for key in after} == after
    assert (directory / "runs/format1_run/evaluation/eval-00000006.json").exists()


def replayed(directory: Path, run: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What the command prints, in this process."""
    capfd.readouterr()
    with contextlib.chdir(directory):
        done = command_line.rlax("replay", run)
    out = done.output + "".join(capfd.readouterr())
    assert done.exit_code == 0, out
    return out


def test_its_batches_are_trained_again_bit_for_bit(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = replayed(directory, "runs/format1_run", capfd)
    assert "identical: 7 versions, the last is version 6" in out
    assert f"with digest {LAST_DIGEST}" in out


def test_it_is_not_continued_and_its_weights_are(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = contents(directory)
    arguments = ["train", CONFIG, *overrides(directory), "steps=8"]
    status, out, error = rlax(directory, *arguments)
    assert (status, out) == (2, "")
    first, command = error.splitlines()
    assert first == (
        "error: run_name = 'format1_run': runs/format1_run was recorded by an earlier version, in "
        "format 1, which rlax audit, report, replay and eval can read, but no run can be continued "
        "in; choose another run_name. To train on from its weights under another name:"
    )
    assert command.strip().endswith("run_name=format1_run-2 --from runs/format1_run")
    assert contents(directory) == before
    # As it says. The first weights are the ones of the old run's last checkpoint.
    words = [word for word in arguments if not word.startswith("run_name=")]
    words += ["run_name=format1_run-2", "steps=1", "rlax.evaluation.problems=0"]
    status, out, error = rlax(directory, *words, "--from", "runs/format1_run")
    assert status == 0, out + error
    new = directory / "runs/format1_run-2"
    assert json.loads((new / "descent.json").read_text())["step"] == 6
    assert audit(RunFiles(new)).clean
    replayed(directory, "runs/format1_run-2", capfd)
    events = [
        event
        for path in sorted(new.glob("journal/*/*.json"))
        for event in json.loads(path.read_text())["events"]
    ]
    first_digest = next(e["digest"] for e in events if e["event"] == "published")
    assert first_digest == LAST_DIGEST


def test_it_is_shown_again_when_it_is_complete(directory: Path) -> None:
    status, out, error = rlax(directory, "train", CONFIG, *overrides(directory))
    assert status == 0, out + error
    assert "the run is complete: 6 steps" in out
    assert not (directory / "runs/format1_run/samples").exists()
