"""``rlax convert --verify`` without torch: a Python that repeats what MaxText computes plays it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny_models
from command_line import rlax
from safetensors.numpy import load_file, save_file

from maxtext_overrides.models import convert
from maxtext_overrides.models.agreement import loaded_model
from maxtext_overrides.models.checkpoint import ITEMS
from maxtext_overrides.models.forward import EXACT, Forward
from maxtext_overrides.models.reading import Checkpoint
from maxtext_overrides.models.verify import (
    ANSWER,
    FAR,
    PROMPT,
    TOLERANCE,
    Agreement,
    Expected,
    ask,
    has_torch,
    tolerance,
)
from rlax_plugin.base.errors import RlaxError

WITHOUT_TORCH = sys.executable  # the project's environment has none
VOCABULARY = 96

Converted = Callable[..., tuple[int, str]]


class Model(NamedTuple):
    """A converted model in memory."""

    forward: Forward
    positions: int


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    out = tmp_path_factory.mktemp("model")
    found = convert.examine(tiny_models.write("qwen2", out / "source"), "float32", True)
    found.write(out, out, lambda *_: None)
    keys = {**found.keys, **EXACT, "max_target_length": PROMPT + ANSWER}
    config, _ = loaded_model(keys, "the tiny model")
    forward = Forward(config, Checkpoint(str(out / ITEMS)))
    return Model(forward, found.architecture.positions)


@pytest.fixture(scope="module")
def python(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shell script that says it has torch, and knows the logits of the model above."""
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, PROMPT)
    row = np.concatenate([prompt, np.zeros(ANSWER, int)])
    for place in range(PROMPT, len(row)):
        row[place] = model.forward(row, np.array([place - 1]))[0].argmax()
    far = np.arange(PROMPT) * min(FAR, model.positions // PROMPT)
    directory = tmp_path_factory.mktemp("python")
    given, script = directory / "given.npz", directory / "python"
    logits = model.forward(row, np.arange(len(row)))
    far_logits = model.forward(prompt, np.arange(PROMPT), far)
    known = {"answer": row[PROMPT:], "logits": logits, "far": far_logits}
    np.savez(given, **known, rounding=0, made_with="transformers 0")
    script.write_text(f'#!/bin/sh\ntest "$1" = -c || cp {given} "$4"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_models.write("qwen2", tmp_path / "source")


@pytest.fixture
def converted(source: Path, capfd: pytest.CaptureFixture[str]) -> Converted:
    """Converts into ``out`` beside the source; returns the exit status and what was printed."""

    def run(python: str, *more: str) -> tuple[int, str]:
        out = source.with_name("out")
        verify = ("--verify", "--verify-python", python)
        result = rlax("convert", str(source), "--out", str(out), *verify, *more)
        # Nothing half-written is left either.
        kept = {"source", "out"} if result.exit_code == 0 else {"source"}
        assert {path.name for path in source.parent.iterdir()} == kept
        printed = capfd.readouterr().out + result.stderr
        return result.exit_code, " ".join(printed.split())

    return run


def test_the_models_logits_are_those_of_transformers(model: Model) -> None:
    known = tiny_models.known("qwen2")
    at = np.arange(0, tiny_models.LENGTH, known["every"])
    places = tiny_models.positions(known["stride"])
    rows = zip(tiny_models.tokens(VOCABULARY), places, strict=True)
    logits = np.concatenate([model.forward(tokens, at, where) for tokens, where in rows])
    np.testing.assert_allclose(logits[:, known["columns"]], known["logits"], atol=2e-4)
    assert logits.argmax(axis=1).tolist() == known["best"]
    prompt, answer = tiny_models.prompt(VOCABULARY), known["greedy"]
    following = np.arange(len(answer)) + len(prompt) - 1
    found = model.forward(np.array([*prompt, *answer]), following)
    assert found.argmax(axis=1).tolist() == answer


def test_the_written_model_computes_the_same(python: str, converted: Converted) -> None:
    code, said = converted(python, "--dtype", "bfloat16")
    assert code == 0, said
    assert "verified with transformers 0: " in said
    assert "same at 144 of 144 places and 16 of 16 greedy tokens" in said
    assert "before they were rounded to bfloat16" in said


def test_another_weight_is_found_and_nothing_is_kept(
    source: Path, python: str, converted: Converted
) -> None:
    weights = load_file(source / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] += 0.01  # of 64 * 96 that are about 0.2
    save_file(weights, source / "model.safetensors")
    code, said = converted(python)
    assert code != 0
    assert "error: --verify: what was written is not the model that transformers 0 computes" in said


@pytest.mark.parametrize(
    ("python", "why"), [(WITHOUT_TORCH, "has no torch"), ("/nowhere/python", "cannot be started")]
)
def test_a_python_without_torch_is_an_error(python: str, why: str, converted: Converted) -> None:
    code, said = converted(python)
    assert code != 0 and python in said and why in said


def played(directory: Path, script: str) -> str:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def answered(directory: Path, script: str, far: int = 0) -> Mapping[str, np.ndarray]:
    """Asks a script, which gets the program, the model, and the two files as $1 to $4."""
    places = np.arange(6)
    asked = played(directory, script)
    return ask(asked, directory / "model", np.arange(4), 2, places, np.arange(far) * 100)


def test_whether_there_is_torch_is_found_without_importing_it(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    for name in ("torch", "transformers"):
        assert not has_torch(played(tmp_path, f'PYTHONPATH={modules} {sys.executable} -S "$@"'))
        (modules / name).mkdir(parents=True)
        (modules / name / "__init__.py").write_text("raise SystemExit(1)")
    assert has_torch(played(tmp_path, f'PYTHONPATH={modules} {sys.executable} -S "$@"'))


def test_an_error_is_named_by_its_first_line(tmp_path: Path) -> None:
    text = "Traceback:\\n  File x\\nValueError: there is no such model\\nYou can update this\\n"
    with pytest.raises(RlaxError, match=r"cannot compute .*model: ValueError: there is no such m"):
        answered(tmp_path, f"printf '{text}' >&2; exit 1")
    with pytest.raises(RlaxError, match=r"cannot compute .*model: it ended with status -9"):
        answered(tmp_path, "kill -9 $$")


LOGITS = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [0.0, 5.0, 1.0], [1.0, 0.0, 0.5]])


def compared(ours: np.ndarray, **changes: Any) -> Agreement:
    """With the row 2 1 | 0 1: the answer to the first two tokens is the best of places 1 and 2."""
    row: dict[str, Any] = {
        "tokens": np.array([2, 1, 0, 1]),
        "at": np.arange(4),
        "logits": LOGITS,
        "answer": 2,
    }
    found = Agreement()
    found.add(Expected(**row | changes), lambda tokens, at, positions=None: ours[at])
    return found


def test_the_same_logits_are_the_same_model() -> None:
    found = compared(LOGITS)
    assert (found.largest, found.best, found.greedy, found.tied) == (0.0, 4, 2, 0)
    assert (found.places, found.tokens) == (4, 2) and found.holds()


def test_a_logit_may_differ_by_the_tolerance() -> None:
    other = LOGITS.copy()
    other[2, 2] += 0.9 * TOLERANCE
    assert compared(other).share == pytest.approx(0.9) and compared(other).holds()
    other[2, 2] += 0.2 * TOLERANCE
    assert not compared(other).holds()


def test_more_is_accepted_at_far_positions() -> None:
    other = LOGITS + 5 * TOLERANCE
    assert not compared(other).holds()
    assert compared(other, positions=np.arange(4) + 128 * 6).share == pytest.approx(5 / 6, rel=0.01)


def test_nan_is_another_model() -> None:
    other = LOGITS.copy()
    other[1, 1] = np.nan
    assert not compared(other).holds()
    nothing = {"at": np.arange(0), "logits": LOGITS[:0]}
    assert not compared(other, **nothing).holds()  # of the answer alone


def test_another_best_token_is_another_model_unless_it_is_a_tie() -> None:
    near, other = LOGITS.copy(), LOGITS.copy()
    near[1, 1], other[1, 1] = 3.0 - 0.5 * TOLERANCE, 3.0 + 0.4 * TOLERANCE
    found = compared(other, logits=near)
    assert found.holds() and found.tied == 2  # at that place, and as a token of the answer
    other[1, 1] = 3.1
    found = compared(other, logits=near)
    assert not found.holds() and (found.best, found.greedy) == (3, 1)
    assert "at 3 of 4 places and 1 of 2 greedy tokens" in str(found)


def test_large_models_get_four_times_their_own_rounding() -> None:
    assert tolerance(1e-5) == TOLERANCE
    assert tolerance(1.2e-4) == pytest.approx(4.8e-4)
    assert tolerance(1.0) == 2e-3
