"""A task that no sample solves at first: the demo's model learns it with guidance, and else not."""

import json
from pathlib import Path

import pytest
from processes import finished

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

ROOT = Path(__file__).parents[2]
ROWS = 128
HARD = (
    "rlax.trainer.warm_start.enabled=false",
    "rlax.prompt_source={name: arithmetic, digits: 1, test_problems: 10, validation_problems: 10}",
    "rlax.evaluation={split: train, problems: 61, samples: 16, k: [1]}",
    "rlax.launcher.workers=1",
    "rlax.rollouts.groups_per_step=16",
    f"rlax.rollouts.slots={ROWS}",
    f"per_device_batch_size={ROWS}",
    "learning_rate=2.e-3",
    "rlax.seed=1",
    "init_weights_seed=1",
)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_model_that_solves_nothing_learns_with_guidance_only(tmp_path):
    where = f"base_output_directory={tmp_path}"
    train = ("train", "configs/demo.yml", where, *HARD)
    alone = finished(*train, "run_name=alone", "steps=80", cwd=ROOT)
    assert alone.returncode == 1 and "128 because all rewards equal" in alone.stderr
    guided = (*train, "run_name=guided", "steps=80", "rlax.objective.guidance={gamma: 0.03}")
    done = finished(*guided, cwd=ROOT, timeout_s=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "guided/summary.json").read_text())
    before, after = (
        summary["evaluation"][when]["train"]["pass_at_1"] for when in ("before", "after")
    )
    assert before["value"] < 0.005
    assert after["ci95"][0] > 0.1
    assert audit(RunFiles(tmp_path / "guided")).violation is None
