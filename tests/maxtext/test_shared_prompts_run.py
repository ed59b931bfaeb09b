"""A whole run with shared prompts, several updates a step and a reference policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import finished

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

ROOT = Path(__file__).parents[2]
CONFIG = "tests/configs/maxtext.yml"
STEPS = 2
# A group of four samples lies in one row, and a step has four rows: two updates of two
# micro-batches with one row each.
SETTINGS = (
    "rlax.batches={sequences_per_row: 4, shared_prompts: true}",
    "max_target_length=40",
    "per_device_batch_size=1",
    "gradient_accumulation_steps=2",
    "rlax.objective.mini_batches=2",
    "rlax.objective.preset=grpo",
    "rlax.objective.kl.coefficient=0.04",
    f"steps={2 * STEPS}",
    "checkpoint_period=2",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trainer_computes_the_workers_log_probs_and_the_run_can_be_replayed(tmp_path):
    arguments = (CONFIG, *SETTINGS, f"base_output_directory={tmp_path}")
    done = finished("train", *arguments, cwd=ROOT, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "maxtext"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["batch/rows"] == 4 and step["batch/groups"] == 4
        # The worker decodes every sample alone, behind its own prompt.
        assert 0 < step["logprob_gap/mean"] < step["logprob_gap/max"] < 1e-4
        assert step["objective/reference_kl_k3"] > 1e-4
    assert audit(RunFiles(run)).violation is None
    replayed = finished("replay", str(run), cwd=ROOT, timeout_s=600)
    said = " ".join((replayed.stdout + replayed.stderr).split())
    assert replayed.returncode == 0 and "identical: 3 versions" in said, said
