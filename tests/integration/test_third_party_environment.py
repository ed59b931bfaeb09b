"""A third-party environment, written from docs/environments.md alone, trains the toy policy.

It lies below ``tests/third_party`` and is used from elsewhere: copied, built, installed and run in
directories of its own, beside an ``rlax-plugin`` that knows nothing of it. The other package there
is installed and checked with it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from runs import ROOT, Run, plugins
from strangers import installed, python

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TrainBatch
from rlax_plugin.run.state.read_samples import as_batch, from_table, rows_of
from rlax_plugin.testing.task import encode
from rlax_plugin.tools.commands.audit.auditor import audit

PACKAGES = {name: ROOT / "tests/third_party" / name for name in ("rlax_guessing", "rlax_variety")}
STEPS, ROW = 40, 4 + 16
RULES = 4  # of the contract of environments, for one that is deterministic
ABILITIES = 1  # the line that says so


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return installed(tmp_path_factory.mktemp("stranger"), *PACKAGES.values())


@pytest.fixture(scope="module")
def run(site, tmp_path_factory) -> Run:
    """A run in which no reward pays but the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        run = Run(
            tmp_path_factory.mktemp("guessing"),
            plugins("rlax_guessing"),
            f"steps={STEPS}",
            "rlax.prompt_source.count=10",
            "rlax.environment={name: guessing}",
            "rlax.rewards=[]",
            "rlax.episodes={max_turns: 5, max_tokens: 16}",
            "rlax.rollouts.max_new_tokens=2",
            "rlax.curation.filters=[]",
            "rlax.objective.preset=reinforce_plus_plus",
            "rlax.trainer.learning_rate=10",
            "rlax.evaluation.problems=10",
        )
        status, out = run.end()
    assert status == 0, out
    return run


def tables(run: Run) -> list[pa.Table]:
    files = sorted(run.dir.glob("samples/*/*.parquet"))
    return [rows_of(file.read_bytes(), f"samples/{file.name}") for file in files]


@pytest.fixture(scope="module")
def rows(run) -> list[dict[str, Any]]:
    """One per episode, since each has one trajectory."""
    return [row for table in tables(run) for row in table.to_pylist()]


@pytest.fixture(scope="module")
def batches(run) -> list[TrainBatch]:
    return [as_batch(step, from_table(table)) for step, table in enumerate(tables(run), start=1)]


@pytest.mark.parametrize(
    ("name", "lines", "names"),
    [
        ("rlax_guessing", 60, {"numpy", "pydantic.Field", "rlax_plugin.api"}),
        ("rlax_variety", 50, {"pydantic.Field", "rlax_plugin.api"}),
    ],
)
def test_a_package_is_small_and_stands_on_the_installed_project_alone(site, name, lines, names):
    modules = sorted(PACKAGES[name].rglob("*.py"))
    assert [path.name for path in modules] == [f"{name}.py", f"test_{name}.py"]
    assert sum(len(path.read_text().splitlines()) for path in modules) <= lines
    tree = ast.parse((site / f"{name}.py").read_text())
    found = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert found == names


def test_what_is_installed_is_each_plug_in_and_nothing_else(site):
    assert sorted(path.stem for path in site.glob("*.py")) == list(PACKAGES)
    found = sorted(importlib.metadata.distributions(path=[str(site)]), key=lambda one: one.name)
    assert [one.requires for one in found] == [["rlax-plugin"]] * 2
    entries = [entry for one in found for entry in one.entry_points]
    assert [(e.group, e.name) for e in entries] == [("rlax_plugin", name) for name in PACKAGES]


def test_each_passes_its_own_test_against_what_was_installed(site, tmp_path):
    for name, package in PACKAGES.items():
        shutil.copy(package / f"test_{name}.py", tmp_path)
    out = python(tmp_path, "pytest", "-v", "-p", "no:cacheprovider", str(tmp_path), path=site)
    passed = re.findall(r"^test_(\w+)\.py::\S+ PASSED", out, re.MULTILINE)
    assert passed == ["rlax_guessing", "rlax_variety", "rlax_variety"] and "3 passed" in out


def test_the_environment_keeps_every_rule_of_the_contract(site, tmp_path):
    out = python(tmp_path, "rlax_plugin", "check-plugin", "rlax_guessing", path=site)
    assert len(re.findall(r"- \S", out)) == RULES + ABILITIES
    assert "environment" in out


def test_episodes_of_up_to_five_turns_are_recorded(rows):
    turns = [len(row["given_lengths"] or (0,)) for row in rows]
    assert set(turns) == {1, 2, 3, 4, 5}
    question, higher, lower = (int(encode(text)[0]) for text in "ghl")
    for row, count in zip(rows, turns, strict=True):
        assert row["given"][0] == question and set(row["given"][1:]) <= {higher, lower}
        assert len(row["given"]) == count
        secret, texts = row["prompt"][-1], row["texts"] or [row["completion"]]
        guesses, answers = texts[::2], texts[1::2]
        assert answers == ["h" if guess < secret else "l" for guess in guesses[:-1]]
        assert secret not in guesses[:-1] and (count == 5 or guesses[-1] == secret)


def test_the_policy_learns_the_game(run):
    rewards = [step["reward/mean"] for step in run.steps()]
    assert np.mean(rewards[:5]) < -0.9 and np.mean(rewards[-5:]) > -0.5


def test_the_audit_is_clean(run):
    report = audit(RunFiles(run.dir))
    assert report.violation is None and report.warnings == []
