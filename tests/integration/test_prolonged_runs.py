"""A finished run that is prolonged, and killed early: there are weights at any moment."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from test_recovery import train

from rlax_plugin.records.files import RunFiles
from rlax_plugin.testing import policy
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.kept_versions import kept_version
from rlax_plugin.weights.verification import check_fingerprints

QUICK = ("rlax.evaluation.problems=0", "rlax.trainer.checkpoint_every=1")


def readable(run: Path) -> int:
    """The number of the newest version that the run's own list names, read and compared."""
    version = kept_version(RunFiles(run))
    like = {name: np.empty(shape, np.float32) for name, shape in policy.SHAPES.items()}
    check_fingerprints(version, fingerprint_numpy(NpzStore().load(version.paths[0], like)))
    return version.version


@pytest.mark.long
def test_a_prolonged_run_has_weights_whenever_it_is_killed_and_leaks_none(tmp_path):
    weights, run = tmp_path / "bucket", tmp_path / "runs/testing"
    others = weights / "00000009-of-another-run" / "weights.npz"
    others.parent.mkdir(parents=True)
    others.touch()
    settings = (*QUICK, f"rlax.weights.path={weights}")

    def left() -> list[str]:
        return sorted(path.name for path in weights.iterdir() if path != others.parent)

    done = train(tmp_path, *settings, "steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name[:8] for name in left()] == ["00000002", "00000003"]
    # Before and after the first new version is written, and before what it replaces is deleted.
    for point in ("weights-listed", "weights-written", "weights-retired"):
        killed = train(tmp_path, *settings, "steps=6", kill_at=f"{point}:1")
        assert killed.returncode == -SIGKILL, f"{point} was not reached: {killed.stdout}"
        assert readable(run) >= 3, point
        assert len(left()) <= 5, (point, left())  # twice as many as are kept, and a new one
    done = train(tmp_path, *settings, "steps=6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert readable(run) == 6
    assert [name[:8] for name in left()] == ["00000005", "00000006"]
    assert others.exists()
