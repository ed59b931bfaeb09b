"""Corrupted copies of tiny models: each is a model or one clear error, and MaxText is not asked."""

import os
import subprocess
import sys
from pathlib import Path

import corrupting
import pytest
from processes import python_path

HERE = Path(__file__).parent
HELPERS = HERE.parents[1] / "helpers"

# Refuses what another file of tests lists, in a process that has not imported MaxText yet.
REFUSALS = """
import shutil, sys
from pathlib import Path
import tiny_models, test_converted_sources
from rlax_maxtext.trainer import examine_model
from rlax_plugin.base.errors import ConfigError

place = Path(sys.argv[1])
whole = tiny_models.write("llama", place / "llama")
for change, _ in test_converted_sources.REJECTED.values():
    source = shutil.copytree(whole, place / "source")
    change(source)
    try:
        examine_model(source, "float32", True)
    except ConfigError:
        assert "maxtext" not in sys.modules and "jax" not in sys.modules, source
        shutil.rmtree(source)
    else:
        sys.exit(f"{change} was accepted")
"""


def finished(*arguments: str) -> str:
    """What a process prints that has these helpers and test files to import."""
    environment = os.environ | {"PYTHONPATH": python_path(HELPERS, HERE)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", corrupting.FILES)
def test_a_few_copies_of_each_file(name: str, tmp_path: Path) -> None:
    found = corrupting.outcomes(name, tmp_path, count=25)
    assert found["error"] >= 5 and sum(found.values()) == 25


@pytest.mark.long
def test_many_copies_with_a_limit_of_memory() -> None:
    names = [
        line.partition(" ")[0] for line in finished(corrupting.__file__, "300", "1").split("\n")
    ]
    assert [name for name in names if name in corrupting.FILES] == list(corrupting.FILES)


def test_no_refusal_imports_maxtext(tmp_path: Path) -> None:
    """In a process of its own: other tests have imported MaxText."""
    finished("-c", REFUSALS, str(tmp_path))
