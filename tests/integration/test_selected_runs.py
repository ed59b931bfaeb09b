"""A run with a selection of samples that is killed ends with the same weights, and replays.

Real processes; the model is the toy of ``rlax_plugin.testing``.
"""

from pathlib import Path

import pytest
from command_line import rlax
from processes import finished
from runs import CONFIG, DEADLINE_S, Records, digests

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

STEPS, GROUPS, SIZE, KEPT = 6, 4, 8, 4
SETTINGS = (
    *("train", CONFIG, f"steps={STEPS}", "rlax.deterministic=true", "rlax.evaluation.problems=0"),
    *("rlax.trainer.checkpoint_every=2", f"rlax.rollouts.group_size={SIZE}"),
    f"rlax.curation.selection={{name: shuffle_r1, samples: {KEPT}, rounds: 4}}",
)
# One after the other, each of what goes on from the last one.
KILLS = ("segment-written:2", "commit-begun:1", "step-trained:2")

pytestmark = pytest.mark.slow


def train(directory: Path, kill_at: str = "") -> int:
    directory.mkdir(exist_ok=True)
    done = finished(*SETTINGS, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)
    assert done.returncode == (-9 if kill_at else 0), done.stdout + done.stderr
    return done.returncode


@pytest.mark.ci
def test_a_killed_run_selects_the_same_samples(tmp_path, monkeypatch, capfd):
    train(tmp_path / "undisturbed")
    for point in KILLS:
        train(tmp_path / "killed", point)
    train(tmp_path / "killed")
    first, second = Records(tmp_path / "undisturbed"), Records(tmp_path / "killed")
    expected = digests(first.dir)
    assert sorted(expected) == list(range(STEPS + 1)) and digests(second.dir) == expected
    assert len(set(map(frozenset, expected.values()))) == STEPS + 1  # every step learns
    report = audit(RunFiles(second.dir))
    assert report.clean, report.violation

    repeats = [[row["repeats"] for row in run.trained()] for run in (first, second)]
    assert repeats[0] == repeats[1] and len(repeats[0]) == STEPS * GROUPS * SIZE
    assert sum(repeats[0]) == STEPS * GROUPS * KEPT and max(repeats[0]) > 1
    assert report.figures.samples == sum(map(bool, repeats[0]))
    for metrics in first.steps():
        assert metrics["batch/rows"] == metrics["objective/sequences"] == GROUPS * KEPT
        step = [r["repeats"] for r in first.trained() if r["step"] == metrics["step"]]
        assert metrics["curation/samples_left_out"] == step.count(0)
        assert metrics["curation/samples_repeated"] == sum(one > 1 for one in step)

    monkeypatch.chdir(tmp_path / "killed")
    capfd.readouterr()
    replayed = rlax("replay", "runs/testing")
    said = replayed.output + "".join(capfd.readouterr())
    assert replayed.exit_code == 0 and f"identical: {STEPS + 1} versions" in said
