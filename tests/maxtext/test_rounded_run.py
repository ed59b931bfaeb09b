"""A whole run whose versions are rounded to bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16
import pytest
from processes import finished

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles
from rlax_plugin.weights.kept_versions import kept_version

ROOT = Path(__file__).parents[2]
STEPS = 5
SETTINGS = (
    "dtype=bfloat16",
    "scan_layers=true",  # whose variables a worker on a CPU lays out by layer
    "learning_rate=1e-5",
    "rlax.weights={dtype: bfloat16, memory_mib: 0, keep: 6, store: {name: orbax}}",
    f"steps={STEPS}",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_use_rounded_weights(tmp_path):
    config = "tests/configs/maxtext.yml"
    done = finished(
        "train", config, *SETTINGS, f"base_output_directory={tmp_path}", cwd=ROOT, timeout_s=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = RunFiles(tmp_path / "maxtext")
    assert audit(files).violation is None
    versions = [kept_version(files, number) for number in range(STEPS + 1)]
    # Float32 matrices are bfloat16 in a version.
    dtypes = {name: spec.dtype for name, spec in versions[0].tensors.items()}
    assert {name for name, dtype in dtypes.items() if dtype == "float32"} == {
        name for name in dtypes if name.endswith("scale")
    }
    # Every version changed something, and its worker verified the log-probs of the canary.
    assert len({tuple(s.fingerprint for s in v.tensors.values()) for v in versions}) == STEPS + 1
    lines = (tmp_path / "maxtext/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["staleness/max"] for step in steps] == [1] * STEPS
    assert all(step["logprob_gap/max"] < 0.1 for step in steps)
