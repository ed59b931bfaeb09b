"""A third-party environment, written from docs/environments.md alone, trains the toy policy.

It lies below ``tests/third_party`` and is used from elsewhere: copied, built, installed and run in
directories of its own, beside an ``rlax-plugin`` that knows nothing of it. The other package there
is installed and checked with it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import ROOT, Run, plugins
from strangers import installed, python

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state.read_samples import rows_of
from rlax_plugin.testing.task import encode
from rlax_plugin.tools.commands.audit.auditor import audit

pytestmark = pytest.mark.ci

PACKAGES = {name: ROOT / "tests/third_party" / name for name in ("rlax_guessing", "rlax_variety")}


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
            "steps=40",
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


@pytest.fixture(scope="module")
def rows(run) -> list[dict[str, Any]]:
    """One per episode, since each has one trajectory."""
    files = sorted(run.dir.glob("samples/*/*.parquet"))
    tables = [rows_of(file.read_bytes(), f"samples/{file.name}") for file in files]
    return [row for table in tables for row in table.to_pylist()]


def test_each_passes_its_own_test_against_what_was_installed(site, tmp_path):
    for name, package in PACKAGES.items():
        shutil.copy(package / f"test_{name}.py", tmp_path)
    out = python(tmp_path, "pytest", "-v", "-p", "no:cacheprovider", str(tmp_path), path=site)
    passed = re.findall(r"^test_(\w+)\.py::\S+ PASSED", out, re.MULTILINE)
    assert passed == ["rlax_guessing", "rlax_variety", "rlax_variety"] and "3 passed" in out


def test_the_environment_keeps_every_rule_of_the_contract(site, tmp_path):
    out = python(tmp_path, "rlax_plugin", "check-plugin", "rlax_guessing", path=site)
    # Four rules for one that is deterministic, and the line that says so.
    assert len(re.findall(r"- \S", out)) == 5 and "environment" in out


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
    report = audit(RunFiles(run.dir))
    assert report.violation is None and report.warnings == []
