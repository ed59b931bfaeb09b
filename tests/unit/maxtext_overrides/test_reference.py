"""``reference.json`` beside a model: what of it is read, and what is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models

from maxtext_overrides.models.reference_logits import read_reference
from rlax_plugin.errors import ConfigError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_models.write_reference("qwen2", tmp_path)
    return tmp_path


def changed(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "reference.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_the_rows_of_a_tiny_model(directory: Path) -> None:
    found, known = read_reference(directory, 96), tiny_models.known("qwen2")
    assert found is not None
    first, second, answered = found.rows
    assert [*first.logits, *second.logits] == known["logits"]
    assert [*first.best, *second.best] == known["best"]
    assert second.tokens == tiny_models.tokens(96)[1].tolist()
    assert second.positions == list(range(24)) and second.at == [0, 4, 8, 12, 16, 20]
    assert answered.tokens[-answered.answer :] == known["greedy"]


def test_no_file_is_no_reference(tmp_path: Path) -> None:
    assert read_reference(tmp_path, 96) is None


def row(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["rows"][0].update(changes)


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "strange key": (row(logit=1), r"rows\.0\.logit in .*reference.json: Extra inputs"),
    "no rows": (lambda content: content.update(rows=[]), "rows in .*at least 1 item"),
    "nothing to compare": (
        lambda content: content.update(rows=[{"tokens": [1, 2]}]),
        "rows in .*hold nothing to compare with",
    ),
    "place outside": (row(at=[0, 4, 8, 12, 16, 24]), "at must be places in the row"),
    "negative token": (row(tokens=[-1] * 24), r"rows\.0\.tokens\.0 in "),
    "token of another model": (row(tokens=[96] * 24), "names a token that the model, which has 96"),
    "best of another model": (row(best=[96] * 6), "names a token that the model"),
    "missing logits": (row(logits=[[0.0] * 4] * 5), "one entry for each place"),
    "missing column": (row(logits=[[0.0] * 3] * 6), "one number for each token in columns"),
    "no number": (row(logits=[[float("nan")] * 4] * 6), "finite number"),
    "positions": (row(positions=[0]), "positions must be as many as tokens"),
    "only an answer": (row(answer=24), "answer must leave a prompt"),
    "too many rows": (
        lambda content: content.update(rows=content["rows"] * 6),
        "rows in .*at most 16",
    ),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_rejected(
    change: Callable[[dict[str, Any]], object], message: str, directory: Path
) -> None:
    changed(directory, change)
    with pytest.raises(ConfigError, match=message):
        read_reference(directory, 96)
