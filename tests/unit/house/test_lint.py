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
    recipe = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    calls = re.findall(r"\$\(BIN\)/ruff [^&\n]*|lint-imports[^&\n]*", recipe)
    assert len(calls) == 3 and all("--no-cache" in call for call in calls)


def test_no_file_has_more_than_400_lines() -> None:
    paths = [path for name in CODE for path in (ROOT / name).rglob("*.py")]
    assert len(paths) > 500
    lines = {path: len(path.read_text().splitlines()) for path in paths if "_pb2" not in path.name}
    assert {str(path): count for path, count in lines.items() if count > 400} == {}
