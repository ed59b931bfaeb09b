"""The presets that are libraries' defaults: what they say of themselves, and one in numbers."""

from __future__ import annotations

import numpy as np
import pytest
from objective_harness import LIBRARIES
from typer.testing import CliRunner

from rlax_plugin.build import registry_for
from rlax_plugin.testing.objectives import evaluate_objective, section_of
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands import reference

SUBJECTS = ("objective", "advantage", "KL", "aggregation", "truncation", "temperature", "updates")


def test_each_tells_its_version_its_source_and_what_it_covers():
    found = reference.presets_of(registry_for(section_of({})))
    assert {"trl/grpo", "verl/grpo", "areal/grpo"} <= set(LIBRARIES)
    for name in LIBRARIES:
        preset = found[name]
        assert preset.title and preset.formula and preset.version, name
        assert preset.source.startswith("https://") and preset.paper.startswith("https://"), name
        assert tuple(preset.covers) == SUBJECTS, name


@pytest.mark.parametrize("name", ["trl/grpo", "areal/grpo"])
def test_the_command_prints_the_table(name):
    result = CliRunner().invoke(app, ["explain", name], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "Defaults of version" in result.output and "What the preset cannot say" in result.output
    assert "Worked example" in result.output and "temperature" in result.output


def test_trls_grpo_by_hand():
    # A = +-0.5/(1/sqrt(2) + 1e-4). m is 2 and 2 of the first sample, whose product 4 exceeds 3, and
    # 0.5 of the second. r = 1, so that -dJ/dlog pi is 0, 0 and 0.5 A / 3 tokens.
    mu = np.log([[0.1, 0.1], [0.4, 0.4]])
    old = np.log([[0.2, 0.2], [0.2, 0.4]])
    found = evaluate_objective(
        "trl/grpo",
        logprobs_bt=old,
        behaviour_logprobs_bt=mu,
        proximal_logprobs_bt=old,
        rewards_b=[1, 0],
        mask_bt=[[1, 1], [1, 0]],
        group_size=2,
    )
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    np.testing.assert_allclose(found.advantages_bt, [[advantage, advantage], [-advantage, 0]])
    expected = [[0, 0], [0.5 * advantage / 3, 0]]
    np.testing.assert_allclose(found.grad_bt, expected, rtol=1e-5, atol=1e-8)
