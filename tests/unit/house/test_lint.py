"""``make lint`` says the same whatever lies beside the code, and ``make test`` fails with it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_folders_beside_the_code_do_not_decide_what_is_first_party(tmp_path: Path) -> None:
    """Commands write ``wandb/`` and others there, whose names tests import."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = "import numpy\nimport wandb\n\nimport rlax_plugin\n"
    (tmp_path / "code.py").write_text(f"{source}\nprint(numpy, wandb, rlax_plugin)\n")
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    (tmp_path / "wandb").mkdir()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout + done.stderr == "All checks passed!\n"


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
