"""A Python that is asked for transformers' numbers, played by a shell script."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from maxtext_overrides.models.asking_transformers import Computed, ask, has_torch
from rlax_plugin.errors import ConfigError, RlaxError


def python(directory: Path, script: str) -> str:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def answered(directory: Path, script: str, far: int = 0) -> Computed:
    """Asks a script, which gets the program, the model, and the two files as $1 to $4."""
    places = np.arange(6)
    asked = python(directory, script)
    return ask(asked, directory / "model", np.arange(4), 2, places, np.arange(far) * 100)


def test_what_it_writes_is_returned(tmp_path: Path) -> None:
    logits, far = np.arange(12, dtype=np.float32).reshape(6, 2), np.ones((3, 2), np.float32)
    given = tmp_path / "given.npz"
    answer = np.array([1, 0])
    np.savez(given, answer=answer, logits=logits, far=far, rounding=0.5, made_with="transformers 0")
    check = f'test "$2" = "{tmp_path}/model" && test -s "$3" && grep -q transformers "$1"'
    found = answered(tmp_path, f'{check} && cp {given} "$4"', far=3)
    assert found.made_with == "transformers 0" and found.answer.tolist() == [1, 0]
    np.testing.assert_array_equal(found.logits, logits)
    np.testing.assert_array_equal(found.far, far)
    assert found.rounding == 0.5


def test_whether_there_is_torch_is_found_without_importing_it(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    for name in ("torch", "transformers"):
        assert not has_torch(python(tmp_path, f'PYTHONPATH={modules} {sys.executable} -S "$@"'))
        (modules / name).mkdir(parents=True)
        (modules / name / "__init__.py").write_text("raise SystemExit(1)")
    assert has_torch(python(tmp_path, f'PYTHONPATH={modules} {sys.executable} -S "$@"'))


def test_an_error_is_named_by_its_first_line(tmp_path: Path) -> None:
    text = "Traceback:\\n  File x\\nValueError: there is no such model\\nYou can update this\\n"
    with pytest.raises(RlaxError, match=r"cannot compute .*model: ValueError: there is no such m"):
        answered(tmp_path, f"printf '{text}' >&2; exit 1")
    with pytest.raises(RlaxError, match=r"cannot compute .*model: it ended with status -9"):
        answered(tmp_path, "kill -9 $$")


def test_a_python_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for name, why in (("nothing", "No such file"), ("data", "Permission denied")):
        with pytest.raises(ConfigError, match=f"^--verify-python = .*{name}': .*{why}"):
            has_torch(str(tmp_path / name))
