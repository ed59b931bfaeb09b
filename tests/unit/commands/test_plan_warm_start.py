"""The measured runs of a plan share one warm start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.calibrate import Calibration

DEMO = str(Path(__file__).parents[3] / "configs/demo.yml")
FIRST, SECOND = Arrangement(1, 256, 1), Arrangement(1, 128, 2)
COMPLETE = {"usage": [0.1, 0.1, 1e9, 1e9, 1e9]}


def directories(out: Path, one: Arrangement, *overrides: str) -> list[str]:
    """The overrides of a run's warm start, of a plan whose first run is FIRST."""
    tell = pytest.fail
    runs = Calibration(DEMO, overrides, 512, out, 24, 3, tell, FIRST.name)
    key = "rlax.trainer.warm_start.directory="
    return [a.removeprefix(key) for a in runs.arguments(one) if a.startswith(key)]


@pytest.mark.parametrize(
    ("record", "overrides", "shared"),
    [
        (COMPLETE, (), True),
        ({"usage": None}, (), False),  # the first run was interrupted
        (None, (), False),
        (COMPLETE, ("rlax.trainer.warm_start.enabled=false",), False),
        (COMPLETE, ("rlax.trainer.warm_start=null",), False),
    ],
)
def test_other_runs_use_the_warm_start_of_a_complete_first_one(
    tmp_path: Path, record: dict | None, overrides: tuple[str, ...], shared: bool
) -> None:
    warm = tmp_path / FIRST.name / "prepared" / "warm_start"
    assert directories(tmp_path, SECOND, *overrides) == []
    warm.mkdir(parents=True)
    if record is not None:
        (tmp_path / f"{FIRST.name}.json").write_text(json.dumps(record))
    expected = [json.dumps(str(warm))] if shared else []
    assert directories(tmp_path, SECOND, *overrides) == expected
    assert directories(tmp_path, FIRST, *overrides) == []


def test_a_warm_start_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / FIRST.name / "prepared" / "warm_start").mkdir(parents=True)
    (tmp_path / f"{FIRST.name}.json").write_text(json.dumps(COMPLETE))
    own = "rlax.trainer.warm_start.directory=/elsewhere"
    assert directories(tmp_path, SECOND, own) == ["/elsewhere"]
