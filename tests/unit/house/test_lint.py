"""``make lint`` says the same whatever lies beside the code: ``runs/`` after ``make demo``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = ("benchmarks", "docs", "maxtext_overrides", "plugins", "rlax_plugin", "tests")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All Python of the project, and the configuration of ruff."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in CODE:
        for path in (ROOT / name).rglob("*.py"):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return folder


def lint(folder: Path) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


# What commands of this project write beside the code, and names that tests import.
@pytest.mark.parametrize(
    "beside", [(), ("runs",), ("wandb", "mlruns", "tensorboard", "runs", "installs", "numpy")]
)
def test_folders_beside_the_code_change_nothing(copy: Path, beside: tuple[str, ...]) -> None:
    for name in beside:
        (copy / name / "demo-seed0").mkdir(parents=True)
    try:
        assert lint(copy) == "All checks passed!\n"
    finally:
        for name in beside:
            shutil.rmtree(copy / name)


def test_lint_looks_at_the_code_and_not_at_a_cache() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nlint-style:")[1].split("\n\n")[0]
    calls = re.findall(r"\$\(BIN\)/ruff [^&\n]*|lint-imports[^&\n]*", recipe)
    assert len(calls) == 3 and all("--no-cache" in call for call in calls)


@pytest.mark.parametrize(
    ("types", "tests", "passes"),
    [("true", "true", True), ("false", "true", False), ("true", "false", False)],
)
def test_make_test_fails_if_types_or_tests_do(
    tmp_path: Path, types: str, tests: str, passes: bool
) -> None:
    """pyright and pytest run at the same time, here played by other programs."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml", ".ci/setup", ".ci/browser"):
        _program(tmp_path / name)
    for name in (".complete", "bin/ruff", "bin/lint-imports"):  # newer, so that nothing is set up
        _program(tmp_path / ".venv" / name)
    words = ["make", "test", f"TYPES=echo types; {types}", f"PYTEST=echo tests; {tests}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is passes, done.stderr
    assert "tests" in done.stdout.splitlines() and "pyright:" in done.stdout.splitlines()


def _program(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
