"""The metrics of a run as a plan reads them, and the use of its processes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import psutil
import pytest

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.observed import observed
from rlax_plugin.commands.plan.usage import Usage, UsageMeter
from rlax_plugin.errors import RlaxError
from rlax_plugin.liveness.marks import announced

USAGE = Usage(1.0, 2.0, 3e9, 2e9, 1e8)
ALONE = Arrangement(1, 8, 1)


def run(directory: Path, generate_s: float = 2.0, steps: int = 10) -> str:
    lines = [
        {
            "step": step,
            "time/step_s": 5.0 if step > 3 else 60.0,  # the first ones compile
            "time/train_s": 1.0 + step / 100,
            "time/generate_s": generate_s,
            "rollout/samples": 64.0,
            "rollout/tokens": 640.0 + step,
            "length/issued_max": 20.0,
            **({"rollout/decode_step_s": 0.25} if step % 2 else {}),
        }
        for step in range(1, steps + 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(directory)


def test_steps_are_read_without_the_first_ones(tmp_path: Path) -> None:
    found = observed(run(tmp_path), ALONE, USAGE, 3)
    assert found.step_s == 5.0 and found.train_s == pytest.approx(1.07)
    assert (found.samples, found.tokens, found.longest) == (64.0, 647.0, 20.0)
    assert found.decode_step_s == 0.25 and found.usage == USAGE


def test_a_run_that_says_too_little_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RlaxError, match=r"has 3 steps after the first 3, and a plan needs 4"):
        observed(run(tmp_path, steps=6), ALONE, USAGE, 3)
    # A step that trains what was recorded generates nothing; beside training that is ordinary.
    silent = run(tmp_path, generate_s=0.0)
    with pytest.raises(RlaxError, match="most of its steps generate nothing"):
        observed(silent, ALONE, USAGE, 3)
    late = Arrangement(1, 8, 1, 1, 2)
    assert observed(silent, late, USAGE, 3).generate_s == 0.0


def test_the_cpu_time_of_a_step_is_that_between_two_looks(tmp_path: Path) -> None:
    meter = UsageMeter(tmp_path, warm=3)
    with announced(tmp_path, "trainer"):
        meter.look(2)  # too early to count
        before = sum(psutil.Process().cpu_times()[:2])
        meter.look(4)
        end = before + 0.3
        while sum(psutil.Process().cpu_times()[:2]) < end:
            pass
        meter.look(4)  # no step further
        meter.look(7)
        after = sum(psutil.Process().cpu_times()[:2])
    meter.look(9)  # the run is over
    found = meter.take()
    assert 0.3 / 3 - 0.01 <= found.trainer_cpu_s <= (after - before) / 3 + 0.01
    assert math.isnan(found.workers_cpu_s)  # there is none
    assert found.trainer_bytes > 1 << 20 and found.worker_bytes == 0
