"""docs/objectives.md says what the code does; examples of the docs run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from documents import fences, sections
from installs import on_path
from objective_harness import LIBRARIES, PRESETS
from typer.testing import CliRunner

from rlax_plugin.build import registry_for
from rlax_plugin.testing import evaluate_objective
from rlax_plugin.testing.objectives import section_of, slots_of
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands import reference
from rlax_plugin.training.objective.loss import choices

DOCS = Path(__file__).parents[3] / "docs"
OBJECTIVES = (DOCS / "objectives.md").read_text()
WRITTEN, GENERATED = OBJECTIVES.split("a test compares. -->\n\n")


def test_the_tables_are_those_of_the_code() -> None:
    expected = reference.objectives_page()
    assert expected == GENERATED, (
        "put the output of `rlax explain --markdown objectives` below the marker"
    )


def test_every_metric_has_its_formula() -> None:
    corrections = ("truncated_importance_sampling", "icepop", "sequence_mask", "veto")
    together = {
        "preset": "ppo",
        "old_policy": "proximal",
        "corrections": [{"name": name} for name in corrections],
        "kl": {"coefficient": 0.1, "placement": "loss"},
        "entropy_coefficient": 0.1,
    }
    optional = {"reference_logprobs_bt": [[-1.0], [-1.0]], "entropy_bt": [[1.0], [1.0]]}
    found = set()
    for config in (*PRESETS, together):
        found |= evaluate_objective(
            config,
            logprobs_bt=[[-1.0], [-1.0]],
            behaviour_logprobs_bt=[[-1.0], [-1.0]],
            **(optional if config is together else {}),
            rewards_b=[1, 0],
            mask_bt=[[1], [1]],
            group_size=2,
        ).metrics.keys()
    table = WRITTEN.split("## What is measured")[1].split("\n## ")[0]
    unknown = {name for name in found if f"`{name}`" not in table}
    assert not unknown and len(found) > 25


def effective(config: dict[str, Any]) -> tuple[Any, ...]:
    """Every number of an algorithm, options that have their defaults included."""
    section = section_of(config)
    algorithm = slots_of(section).algorithm
    registry = registry_for(section)
    parts = {
        key: (choice.name, registry.options(kind, choice, key).model_dump())
        for key, kind, choice in choices(algorithm)
    }
    return parts, algorithm.old_policy, algorithm.kl, algorithm.overlong


def test_the_configs_are_valid() -> None:
    example, *others = fences(WRITTEN, "yaml")
    for one in others:
        slots_of(section_of(yaml.safe_load(one)["rlax"]["objective"]))
    slots = slots_of(section_of(yaml.safe_load(example)["rlax"]["objective"]))
    assert len(slots.corrections) == 1 and slots.updates_per_step == 2
    for name, written in zip((*PRESETS, *LIBRARIES), fences(GENERATED, "yaml"), strict=True):
        as_written = effective({"preset": "grpo"} | yaml.safe_load(written))
        assert as_written == effective({"preset": name})


def test_the_example_prints_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [one for one in fences(WRITTEN, "python") if "print(" in one]
    exec(example, {})
    printed = [float(number) for number in re.findall(r"-?\d+\.\d*", capsys.readouterr().out)]
    # A = +-0.5 / std = +-0.7071. Ratios 1.25 and 0.5 with A > 0 are below 1.3; weights 1/4, 1/4 and
    # 1/2: gradients -0.7071 (1.25, 0.5) / 4 and 0.7071 / 2; the loss is the sum over ratios.
    s = 0.5**0.5
    expected = [s, s, -s, 0, -s * 1.25 / 4, -s / 8, s / 2, 0, s * (0.5 - 1.75 / 4), 0]
    np.testing.assert_allclose(printed, expected, atol=1e-5)


@pytest.fixture
def sapo(tmp_path: Path):
    """The objective of docs/writing_plugins.md, installed as the text says."""
    (source,) = (
        block
        for block in fences((DOCS / "writing_plugins.md").read_text(), "python")
        if "rlax_register_gradient_term" in block
    )
    assert len(source.splitlines()) <= 40
    (tmp_path / "soft_gate.py").write_text(source)
    with on_path(tmp_path):
        yield ("rlax_objectives", "soft_gate")


def test_a_new_objective_needs_no_change_here(sapo) -> None:
    # r = 3/2, 1 and 1/2 with A = s, 0, -s; lengths 1, so that agg is 1/3. The derivative of
    # 4/tau sigmoid(tau x) by log r is 4 r sigmoid (1 - sigmoid).
    ratio = np.array([[1.5], [1.0], [0.5]])
    found = evaluate_objective(
        {"preset": "sapo", "grad_1": {"name": "soft_gate", "tau_low": 2.0}},
        logprobs_bt=np.log(0.2 * ratio),
        behaviour_logprobs_bt=np.full((3, 1), np.log(0.2)),
        rewards_b=[2, 1, 0],
        mask_bt=np.ones((3, 1)),
        group_size=3,
        plugins=sapo,
    )
    gate = 1 / (1 + np.exp(-np.array([[1.0], [1.0], [2.0]]) * (ratio - 1)))
    expected = -np.array([[1.0], [0], [-1.0]]) * 4 * ratio * gate * (1 - gate) / 3
    np.testing.assert_allclose(found.grad_bt, expected, rtol=1e-5)


def test_its_commands_do_what_the_page_says(sapo) -> None:
    page = sections((DOCS / "writing_plugins.md").read_text(), 2)
    export, *commands = fences(page["An objective in one file"], "sh")[0].splitlines()
    assert export == "export PYTHONPATH=."
    told = []
    for command in commands:
        result = CliRunner().invoke(app, command.split()[1:], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        told.append(result.output)
    explained, checked = told
    assert "soft_gate" in explained and "sigmoid(tau (r - 1))" in explained
    assert "gradient_term" in checked and "sapo" in checked
