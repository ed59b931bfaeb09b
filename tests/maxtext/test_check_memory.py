"""The memory that ``rlax check`` estimates, beside that of programs compiled for TPUs.

The compiled figures are those of docs/scale.md: bytes in all per chip, from ``rlax check
--compile`` with libtpu 0.0.50.1.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import rlax

SCALE = str(Path(__file__).parents[2] / "configs/scale.yml")


def estimated(*overrides: str) -> tuple[float, float]:
    """GiB of the trainer and of a worker, over all devices."""
    result = rlax("check", SCALE, *overrides, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["memory_bytes"]
    parts = (found["rlax.trainer"], found["rlax.rollouts.engine"])
    return tuple(sum(part.values()) / 2**30 for part in parts)


@pytest.mark.slow
def test_a_dense_model() -> None:
    trainer, worker = estimated()
    assert trainer / 16 == pytest.approx(12.6, rel=0.1)  # v5e-16
    assert worker / 8 == pytest.approx(11.6, rel=0.1)  # v5e-8


@pytest.mark.long
def test_other_slices_and_models() -> None:
    trainer, _ = estimated("rlax.rollouts.groups_per_step=1")
    assert trainer / 8 == pytest.approx(22.7, rel=0.1)  # v6e-8
    trainer, _ = estimated("model_name=qwen3-30b-a3b", "rlax.rollouts.groups_per_step=8")
    assert trainer / 64 == pytest.approx(14.2, rel=0.1)  # v5e-64
