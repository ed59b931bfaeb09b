"""Whole runs of MaxText and JetStream: at equal weights no ratio differs from 1, nothing is cut.

With ``reprefill`` a learning rate of 0 keeps the weights equal over two updates: pi_old is then
computed by the trainer's own forward pass, and compared with what the train step computes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_killed_runs import rlax

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

STEPS = 3
MASKS = "{name: icepop}, {name: sequence_mask, low: 0.99, high: 1.01}, {name: veto}"
CASES = {
    "sampler": (f"rlax.objective.corrections=[{MASKS}]",),
    # Also a reference policy, and rows that hold up to two samples.
    "reprefill": (
        "rlax.objective.epochs=2",
        "learning_rate=0",
        f"rlax.objective.corrections=[{{name: truncated_importance_sampling}}, {MASKS}]",
        "rlax.objective.kl.coefficient=0.04",
        "rlax.batches.sequences_per_row=2",
        "rlax.batches.rows=16",
    ),
}

pytestmark = pytest.mark.slow


def metrics_of(tmp_path: Path, old_policy: str) -> list[dict[str, float]]:
    done = rlax(
        "train",
        "tests/configs/maxtext.yml",
        f"base_output_directory={tmp_path}",
        f"steps={STEPS * (2 if old_policy == 'reprefill' else 1)}",
        f"rlax.objective.old_policy={old_policy}",
        *CASES[old_policy],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "maxtext"
    report = audit(RunFiles(run))
    assert report.violation is None, report.violation
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("old_policy", CASES)
def test_at_equal_weights_every_ratio_is_1_and_no_correction_is_active(tmp_path, old_policy):
    steps = metrics_of(tmp_path, old_policy)
    assert len(steps) == STEPS
    cut = {k for k in steps[0] if "masked" in k or "truncated" in k or "clip_fraction" in k}
    assert len(cut) == (5 if old_policy == "sampler" else 6)
    for step in steps:
        assert step["staleness/max"] == 1
        visits = 2 if old_policy == "reprefill" else 1
        assert step["objective/tokens"] == visits * step["logprob_gap/tokens"] > 0
        assert {name: step[name] for name in cut} == dict.fromkeys(cut, 0)
        assert step["objective/ratio"] == pytest.approx(1, abs=1e-5)
        assert step["objective/chi_squared"] == pytest.approx(0, abs=1e-4)
        assert step["objective/effective_sample_size"] == pytest.approx(1, abs=1e-6)
        assert step["logprob_gap/max"] < 1e-4
        if old_policy == "reprefill":
            assert step["objective/reprefill_missed"] == 0
            assert step["objective/reference_kl_k3"] == pytest.approx(0, abs=1e-9)
