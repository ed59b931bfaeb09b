"""``rlax train --from``: a run that starts from the weights of another one.

A run goes on in a process that has nothing of the one before; commands that read are in this one.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from finished_run import SETTINGS as PARENT
from finished_run import FinishedRun
from processes import finished
from runs import CONFIG, DEADLINE_S, digests, lines
from typer.testing import CliRunner

from rlax_plugin.tools.cli import app

SETTINGS = ("rlax.evaluation.problems=2", "rlax.trainer.checkpoint_every=2")
FASTER = "rlax.trainer.learning_rate=3"


def rlax(directory: Path, *argv: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    return finished(*argv, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)


def train(directory: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    return rlax(directory, "train", CONFIG, *SETTINGS, *argv, **more)


def read(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """A command that only reads records, in this process: its status, and what it printed."""
    done = CliRunner().invoke(app, argv)
    return done.exit_code, " ".join((done.output + "".join(capfd.readouterr())).split())


def steps(run: Path) -> list[int]:
    return [int(line["step"]) for line in lines(run / "metrics.jsonl")]


@pytest.fixture
def here(finished_run: FinishedRun, tmp_path: Path) -> Path:
    """A directory with a finished run in it, the parent."""
    finished_run.copied_to(tmp_path)
    return tmp_path


def test_a_run_starts_from_another_ones_weights_and_goes_on_from_its_own(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    old, new = here / "runs/testing", here / "runs/new"
    began = train(here, FASTER, "run_name=new", "steps=3", "--from", "runs/testing@2")
    assert began.returncode == 0, began.stderr
    assert f"the first weights are those of {old}@2" in began.stdout
    assert digests(new)[0] == digests(old)[2] != digests(old)[4]
    assert steps(new) == [1, 2, 3]

    shutil.copytree(old, here / "runs/other")
    status, said = read(
        capfd, "train", CONFIG, *SETTINGS, FASTER, "run_name=new", "--from", "runs/other@2"
    )
    assert status == 2 and f"new started from {old}@2: continue it without" in said

    assert read(capfd, "audit", "runs/new")[0] == 0
    status, said = read(capfd, "replay", "runs/new")
    assert status == 0 and "identical: 4 versions" in said
    assert read(capfd, "report", "runs/new", "--out", "page.html")[0] == 0
    assert f"Started from {old}@2" in (here / "page.html").read_text()

    # Its own checkpoints are enough to continue it, but not to replay it.
    shutil.rmtree(old)
    assert train(here, FASTER, "run_name=new", "steps=4").returncode == 0
    assert steps(new) == [1, 2, 3, 4] and len(digests(new)[0]) == 1
    status, said = read(capfd, "replay", "runs/new")
    assert status == 2 and f"--from = '{old}@2': no longer exists" in said


def test_a_changed_learning_rate_is_rejected_with_a_command_that_works(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "runs/testing-2").mkdir()
    monkeypatch.chdir(here)
    done = CliRunner().invoke(app, ["train", CONFIG, *PARENT, FASTER, "steps=1"])
    assert done.exit_code == 2
    assert "choose another run_name or remove that directory" in done.stderr
    command = re.search(r"^  \S*rlax (train .*)$", done.stderr, re.MULTILINE)
    assert command is not None, done.stderr
    done = rlax(here, *shlex.split(command[1]))
    assert done.returncode == 0, done.stderr
    versions = digests(here / "runs/testing")
    assert digests(here / "runs/testing-3")[0] == versions[max(versions)]
