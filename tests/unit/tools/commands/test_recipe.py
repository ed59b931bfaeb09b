"""The numbers that ``rlax init`` derives from the size of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import rlax
from documents import ROOT

from rlax_plugin.tools.commands.recipe import Size

# As large as the demo, with the number of steps for which the rule was found.
DEMO = Size(groups=64, group_size=8, steps=320, staleness=1, width=64, workers=2)


def written(folder: Path, options: str) -> dict[str, Any]:
    """Returns the config that ``rlax init`` writes."""
    path = folder / "new.yml"
    assert rlax("init", str(path), "--force", *options.split()).exit_code == 0
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 5e-4),
        ({"groups": 16}, 2.5e-4),  # sqrt(1/4)
        ({"group_size": 2}, 2.5e-4),  # the same number of rows
        ({"steps": 20}, 1.25e-4),  # sqrt(1/16)
        ({"groups": 16, "steps": 20}, 6.25e-5),
        ({"groups": 1, "group_size": 1, "steps": 1}, 1.235e-6),  # 5e-4 / sqrt(512 * 320)
        ({"groups": 1024, "steps": 5000}, 5e-4),  # never above that of the demo
        ({"staleness": 16}, 3.125e-5),
        ({"width": 576}, 1.852e-5),  # 9^1.5 = 27
        ({"width": 4096}, 9.77e-7),  # 64^1.5 = 512
        ({"width": 8}, 5e-4),
    ],
)
def test_the_learning_rate_at_points_computed_by_hand(
    changes: dict[str, int], expected: float
) -> None:
    assert replace(DEMO, **changes).learning_rate == pytest.approx(expected, rel=0.005)


def test_the_rule_is_more_careful_than_the_demo_which_was_tried_with_its_rate() -> None:
    demo = yaml.safe_load((ROOT / "configs/demo.yml").read_text())
    rule = replace(DEMO, steps=demo["steps"]).learning_rate
    assert rule < demo["learning_rate"] < 2 * rule
    assert demo["per_device_batch_size"] == DEMO.rows


def test_the_rate_is_a_number_of_yaml() -> None:
    assert replace(DEMO, groups=16, steps=20).learning_rate_text == "6.25e-5"
    assert yaml.safe_load(DEMO.learning_rate_text) == 5e-4


@pytest.mark.parametrize(
    ("steps", "workers", "fraction", "every"),
    [(100, 2, 0.1, 25), (100, 1, 0.1, 0), (20, 2, 0.1, 10), (10, 2, 0.1, 0), (9, 2, 0, 0)],
)
def test_warm_up_and_evaluations(steps: int, workers: int, fraction: float, every: int) -> None:
    size = replace(DEMO, steps=steps, workers=workers)
    assert (size.warmup_fraction, size.evaluate_every) == (fraction, every)
    settings = size.evaluation({"problems": 8})
    assert settings == {"problems": 8} | ({"every": every} if every else {})
    assert size.evaluation({"problems": 0}) == {"problems": 0}


def test_what_the_user_says_stays_and_the_rest_follows(tmp_path: Path) -> None:
    found = written(tmp_path, "--steps 20 --groups-per-step 16 --group-size 4 --workers 1")
    rollouts = found["rlax"]["rollouts"]
    assert (found["steps"], rollouts["groups_per_step"], rollouts["group_size"]) == (20, 16, 4)
    assert found["per_device_batch_size"] == 64
    expected = Size(16, 4, steps=20, staleness=1, width=64, workers=1)
    assert found["learning_rate"] == expected.learning_rate
    assert found["warmup_steps_fraction"] == 0.1
    assert "every" not in found["rlax"]["evaluation"]  # it needs a second worker
