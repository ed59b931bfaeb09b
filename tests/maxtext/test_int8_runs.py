"""A run whose worker generates with int8 matrices and adapters: killed, it ends the same."""

import json
import signal
from pathlib import Path

import pytest
from processes import finished
from runs import digests, lines
from test_adapters import LORA

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

ROOT = Path(__file__).parents[2]
STEPS = 4

pytestmark = [pytest.mark.slow, pytest.mark.long]


def train(directory, **kwargs):
    argv = (
        f"base_output_directory={directory}",
        f"steps={STEPS}",
        "checkpoint_period=2",
        "rlax.deadlines.startup_s=500",
        f"lora={json.dumps(LORA)}",
        "rlax.rollouts.engine={name: jetstream, quantization: int8}",
        "rlax.objective.old_policy=proximal",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    )
    return finished("train", "tests/configs/maxtext.yml", *argv, cwd=ROOT, timeout_s=580, **kwargs)


@pytest.mark.timeout(1800)
def test_a_killed_run_ends_with_the_same_weights_and_shows_the_gap(tmp_path):
    done = train(tmp_path / "whole")
    assert done.returncode == 0, done.stdout + done.stderr
    whole = tmp_path / "whole/maxtext"
    for step in lines(whole / "metrics.jsonl"):
        assert 1e-4 < step["logprob_gap/mean"] < 0.1  # 1e-6 with the exact matrices
        assert "objective/tis_truncated_fraction" in step
    killed = train(tmp_path / "killed", kill_at="snapshot-written:1")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = train(tmp_path / "killed")
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "killed/maxtext"
    assert digests(run) == digests(whole) and len(digests(run)) == STEPS + 1
    report = audit(RunFiles(run))
    assert report.violation is None and report.figures.restarts == 1
