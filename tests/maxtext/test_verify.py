"""``rlax convert --verify`` without torch: against the numbers that come with a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from command_line import rlax
from safetensors.numpy import load_file, save_file

WITHOUT_TORCH = sys.executable  # the project's environment has none

Converted = Callable[..., tuple[int, str]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tiny_models.write("qwen2", tmp_path / "source")
    tiny_models.write_reference("qwen2", directory)
    return directory


@pytest.fixture
def converted(source: Path, capfd: pytest.CaptureFixture[str]) -> Converted:
    """Converts into ``out`` beside the source; returns the exit status and what was printed."""

    def run(*more: str) -> tuple[int, str]:
        out = source.with_name("out")
        result = rlax("convert", str(source), "--out", str(out), "--verify", *more)
        # Nothing half-written is left either.
        kept = {"source", "out"} if result.exit_code == 0 else {"source"}
        assert {path.name for path in source.parent.iterdir()} == kept
        printed = capfd.readouterr().out + result.stderr
        return result.exit_code, " ".join(printed.split())

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_written_model_computes_the_numbers_that_came_with_it(
    dtype: str, converted: Converted
) -> None:
    code, said = converted("--dtype", dtype)
    assert code == 0, said
    assert "verified with reference.json, made with transformers 5." in said
    assert "same at 12 of 12 places and 16 of 16 greedy tokens" in said
    assert ("before they were rounded to bfloat16" in said) == (dtype == "bfloat16")


def test_another_weight_is_found_and_nothing_is_kept(source: Path, converted: Converted) -> None:
    weights = load_file(source / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] += 0.01  # of 64 * 96 that are about 0.2
    save_file(weights, source / "model.safetensors")
    code, said = converted()
    assert code != 0
    assert "error: --verify: what was written is not the model that reference.json" in said
    # The other tests find about 1e-5.
    assert "the largest difference of logits is 2.2e-03 (11 of what is accepted)" in said


def test_what_another_python_computes_is_preferred(
    source: Path, converted: Converted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A shell script that says it has torch, and whose logits are all zero."""
    directory = tmp_path_factory.mktemp("other")
    given, python = directory / "given.npz", directory / "python"
    logits = {"logits": np.zeros((80, 96), np.float32), "far": np.zeros((64, 96), np.float32)}
    np.savez(given, answer=np.zeros(16, int), rounding=0, made_with="transformers 0", **logits)
    python.write_text(f'#!/bin/sh\ntest "$1" = -c || cp {given} "$4"\n')
    python.chmod(0o755)
    code, said = converted("--verify-python", str(python))
    assert code != 0 and "is not the model that transformers 0 computes: the largest" in said
    assert " of 144 places and " in said


def test_without_numbers_it_says_that_nothing_is_compared(
    source: Path, converted: Converted
) -> None:
    (source / "reference.json").unlink()
    code, said = converted()
    assert code == 0, said
    assert f"not verified: nothing was compared. {WITHOUT_TORCH} has no torch" in said
    assert "--verify-python takes the path of a Python" in said


def test_a_python_that_does_not_exist_is_an_error(converted: Converted) -> None:
    code, said = converted("--verify-python", "/nowhere/python")
    assert code != 0 and "--verify-python = '/nowhere/python': cannot be started" in said
