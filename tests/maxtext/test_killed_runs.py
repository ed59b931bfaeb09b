"""MaxText's own loop, JetStream workers and all: killed, it ends as if it had not been.

These scenarios, and no others, pay for whole processes with MaxText in them: an undisturbed run,
one that is killed at three points, and a replay. Everything else about recovery is proved with the
toy trainer in ``tests/integration/test_recovery.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import digests

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.faults import VARIABLE
from rlax_plugin.records.files import RunFiles

ROOT = Path(__file__).parents[2]
STEPS = 8
# Of a step; mini-batches are dealt out by chance, which must be the same chance in each process.
UPDATES = 2

pytestmark = pytest.mark.slow


def rlax(command: str, *arguments: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlax_plugin", command, *arguments],
        cwd=ROOT,
        env={**os.environ, VARIABLE: kill_at} if kill_at else os.environ.copy(),
        capture_output=True,
        text=True,
        timeout=280,
    )


def train(directory: Path, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    where = f"base_output_directory={directory}"
    updates = (
        f"steps={UPDATES * STEPS}",
        f"rlax.objective.mini_batches={UPDATES}",
        f"per_device_batch_size={16 // UPDATES}",
        "rlax.objective.old_policy=proximal",
    )
    return rlax("train", "tests/configs/maxtext.yml", where, *updates, kill_at=kill_at)


def final_weights(run: Path) -> dict[str, bytes]:
    """Every byte of the last version's arrays; uncompressed float32 with their checksums."""
    (version,) = (run / "weights").glob(f"{STEPS:08d}-*")
    chunks = [path for path in version.rglob("*") if path.is_file() and "c" in path.parts]
    return {str(path.relative_to(version)): path.read_bytes() for path in chunks}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    done = train(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    run = directory / "maxtext"
    report = audit(RunFiles(run))
    assert report.violation is None, report.violation
    return run


@pytest.mark.timeout(900)
def test_a_run_killed_at_three_points_ends_with_the_same_weights(tmp_path, undisturbed):
    # A batch is committed and not trained; a snapshot has no checkpoint; the last checkpoint is
    # there, and no summary.
    for kill_at in ("commit-ended:5", "snapshot-written:1", "run-finished:1"):
        killed = train(tmp_path, kill_at)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = train(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "maxtext"
    weights, expected = final_weights(run), final_weights(undisturbed)
    assert len(expected) > 10 and weights == expected
    assert digests(run) == digests(undisturbed)
    assert all(len(found) == 1 for found in digests(run).values())
    report = audit(RunFiles(run))
    assert report.violation is None, report.violation
    # Checkpoints are written beside the training: where the first was not there in time, the second
    # process was killed while it trained recorded batches again, which leaves no record.
    assert report.figures.restarts in (2, 3)


@pytest.mark.timeout(400)
def test_the_trainer_alone_makes_the_same_weights_of_the_recorded_batches(tmp_path, undisturbed):
    done = rlax("replay", str(undisturbed), "--out", str(tmp_path / "replay"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"identical: {STEPS + 1} versions" in done.stdout
