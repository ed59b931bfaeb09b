"""``pytest --collect-only`` leaves a checkout as it is, also where Python writes bytecode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from documents import ROOT

TESTS = """
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from local import FEW

@given(st.just(0))
def test_one(number):
    assert examples(FEW) >= FEW
"""


def test_collecting_writes_nothing_into_a_checkout(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    helpers = [f"tests/helpers/{name}.py" for name in ("examples", "leftovers", "second_chance")]
    for name in ("pyproject.toml", "tests/conftest.py", *helpers):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tests / "unit").mkdir()
    (tests / "unit/conftest.py").touch()
    (tests / "unit/test_one.py").write_text(TESTS)
    (tmp_path / "local.py").write_text("FEW = 4711")  # hypothesis keeps such numbers
    before = sorted(tmp_path.rglob("*"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}

    def pytest(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/unit", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "1 test collected" in pytest("--collect-only")
    assert sorted(tmp_path.rglob("*")) == before
    # And a run does write, or nothing would be shown above.
    assert "1 passed" in pytest()
    written = {path.parent.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"__pycache__", "constants"} <= written
