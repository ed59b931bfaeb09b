"""The arguments data and rewards of ``train``: what is written, and what is refused."""

import datetime
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cells import notebook

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.scripting.given_data import given_data
from rlax_plugin.tools.scripting.given_rewards import given_rewards

MODULE = """import functools
from fractions import Fraction
from os.path import basename

def twice(function):
    @functools.wraps(function)
    def both(completion):
        return 2 * function(completion)
    return both

@twice
def length(completion):
    return float(Fraction(len(completion)))

def plain(completion):
    return 1.0

@functools.wraps(basename, assigned=())
def around_library(completion):
    return float(len(basename(completion)))

class Judge:
    def __call__(self, completion):
        return 0.0

judge = Judge()
small = lambda completion: 0.0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_scores.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_scores")
    del sys.modules["own_scores"]


def test_rewards_become_entries_and_files(module: Any, tmp_path: Path) -> None:
    cell = notebook("def correct(completion, reference):\n    return completion == reference\n")
    other = tmp_path / "b" / "own_scores.py"
    other.parent.mkdir()
    other.write_text("def short(completion):\n    return 1\n")
    found = given_rewards(
        [
            *("numeric", module.length, cell["correct"]),
            {"function": module.plain, "weight": 0.5},
            module.around_library,
            {"name": "length", "max": 3},
            {"function": "package.module:name"},
            f"{other}:short",
        ]
    )
    assert found.entries == [
        {"name": "numeric"},
        {"function": "own_scores.py:length"},
        {"function": "rewards.py:correct"},
        {"function": "own_scores.py:plain", "weight": 0.5},
        {"function": "own_scores.py:around_library"},
        {"name": "length", "max": 3},
        {"function": "package.module:name"},
        {"function": "own_scores_2.py:short"},
    ]
    assert found.files["own_scores.py"].decode() == MODULE
    assert found.files["own_scores_2.py"] == other.read_bytes()
    assert b"def correct" in found.files["rewards.py"] and len(found.files) == 3


def test_one_reward_needs_no_list() -> None:
    assert given_rewards("numeric").entries == [{"name": "numeric"}]
    assert given_rewards(()).entries == []


def test_rewards_that_cannot_be_written_are_named(module: Any, tmp_path: Path) -> None:
    wrong: list[tuple[Any, str, str]] = [
        (3, "rewards", "must be a list of functions"),
        ([1], "rewards[0]", "is an object of the class int"),
        (["a", module.judge], "rewards[1]", "is an object of the class own_scores.Judge"),
        ([module.small], "rewards[0]", "is a lambda"),
        ([module.Judge], "rewards[0]", "is the class Judge"),
        ([module.judge.__call__], "rewards[0]", "is an object of the class method"),
        ([module.twice(module.plain)], "rewards[0]", "is decorated"),
        ([{"weight": 1}], "rewards[0]", "must have the key name or the key function"),
        ([{"function": lambda c: 1}], "rewards[0]['function']", "is a lambda"),
        ([f"{tmp_path}/no.py:f"], "rewards[0]", "cannot be read"),
    ]
    for given, key, reason in wrong:
        with pytest.raises(ConfigError, match=reason) as caught:
            given_rewards(given)
        assert caught.value.key == key


def test_a_module_that_was_edited_or_imports_relatively_is_refused(module: Any, tmp_path) -> None:
    path = tmp_path / "own_scores.py"
    path.write_text(MODULE.replace("return 1.0", "return 2.0"))
    with pytest.raises(ConfigError, match="import the file, again"):
        given_rewards([module.plain])
    path.write_text(MODULE + "\ndef late():\n    from . import other\n")
    with pytest.raises(ConfigError, match=r"line \d+: it imports relative to a package"):
        given_rewards([module.plain])
    (tmp_path / "beside.py").touch()
    path.write_text(f"{MODULE}import beside\n")
    with pytest.raises(ConfigError, match="of which a run would keep no copy"):
        given_rewards([module.plain])


def test_rows_are_written_exactly() -> None:
    rows = [
        {"question": "Was ist 1 + 1?", "answer": 2, "level": 0.1, "ok": True, "tags": ["ü", None]},
        {"question": "2\n", "answer": "3", "more": {"a": [1]}},
    ]
    found = given_data(rows)
    assert found.name == "data.jsonl"
    assert [json.loads(line) for line in found.content.decode().splitlines()] == rows
    assert found.content == given_data(tuple(rows)).content
    assert given_data(None).path == given_data(None).name == ""
    assert given_data(Path("a/*.jsonl")).path == "a/*.jsonl"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.int64(3), "int64 is not JSON"),
        (np.float64(3), "which JSON keeps exactly"),
        (float("nan"), "not JSON compliant"),
        ((1, 2), "which JSON keeps exactly"),
        ([1, {"a": datetime.date(2020, 1, 1)}], "date is not JSON"),
        ({1: 2}, "which JSON keeps exactly"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_values_that_json_would_change_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        given_data([{"question": "a"}, {"question": "b", "x": value}])
    assert caught.value.key == "data[1]['x']"


def test_other_data_is_refused() -> None:
    wrong: list[tuple[Any, str, str]] = [
        ([], "data", "must have at least one row"),
        (["a"], "data[0]", "must be a dict"),
        (pa.table({"a": [1]}), "data", "must be the name of a file, a list of dicts"),
        (iter([]), "data", "must be the name of a file, a list of dicts"),
    ]
    for given, key, reason in wrong:
        with pytest.raises(ConfigError, match=reason) as caught:
            given_data(given)
        assert caught.value.key == key


@pytest.mark.slow
def test_a_data_set_is_written_with_its_types() -> None:
    import datasets

    features = datasets.Features(
        {
            "question": datasets.Value("string"),
            "answer": datasets.Value("int32"),
            "score": datasets.Value("float32"),
            "tags": [datasets.Value("string")],
        }
    )
    rows = {"question": ["a", "b", "c"], "answer": [1, 2, 3], "score": [0.5, 1, 2]}
    whole = datasets.Dataset.from_dict(rows | {"tags": [["x"], [], ["y"]]}, features)
    found = given_data(whole.select([2, 0]))  # what a filter leaves has an index of its own
    table = pq.read_table(io.BytesIO(found.content))
    assert found.name == "data.parquet"
    assert table.to_pylist() == [whole[2], whole[0]]
    assert table.schema.field("answer").type == pa.int32()
    assert table.schema.field("score").type == pa.float32()
    with pytest.raises(ConfigError, match=r"give one of them, such as data\['train'\]"):
        given_data(datasets.DatasetDict({"train": whole}))
    dated = datasets.Dataset.from_dict({"day": [datetime.datetime(2020, 1, 1)]})
    with pytest.raises(ConfigError, match="must be text, numbers, booleans") as caught:
        given_data(dated)
    assert caught.value.key == "data['day']"
