"""Files of pass rates: written and read again, and hostile ones rejected."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.data.curation.pass_rate_files import (
    About,
    MeasuredRates,
    measured,
    read_table,
    write_table,
)
from rlax_plugin.testing import make_prompt

ABOUT = About(
    run="runs/one",
    weights=None,
    version=20,
    sampling=SamplingParams(max_new_tokens=64, stop_ids=(1, 2), stop_strings=("\n",)),
    pass_threshold=0.5,
    half_life=10.0,
)


def rates(about: About = ABOUT, **changes: Any) -> MeasuredRates:
    columns = {
        "id": ["a", "b", "c"],
        "passed": [4.0, 0.0, 2.5],
        "failed": [4.0, 8.0, 0.0],
        "version": [20, 10, 0],
        "groups": [1, 2, 1],
    }
    return measured(columns | changes, about)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "rates.parquet")
    write_table(path, rates(domain=["x", None, "y"], tokens=[5, 2**40, 0]))
    found = read_table(path)
    assert found.about == ABOUT
    assert found.table.column("domain").to_pylist() == ["x", None, "y"]
    assert found.column("tokens").tolist() == [5, 2**40, 0]
    assert found.table.column("errored").null_count == 3  # it was not counted
    passed, failed = found.counts()  # half-lives since each row's version: 0, 1, 2
    assert passed.tolist() == [4.0, 0.0, 0.625] and failed.tolist() == [4.0, 4.0, 0.0]


def test_rows_of_one_prompt_are_added_up_as_they_count_now() -> None:
    found = rates(id=["b", "a", "b"], domain=[None, None, "z"]).by_id()
    assert found.to_pylist() == [
        {"id": "b", "domain": "z", "passed": 4.625, "failed": 4.0},
        {"id": "a", "domain": None, "passed": 0.0, "failed": 4.0},
    ]


def test_counts_are_found_at_the_prompts_of_a_split() -> None:
    prompts = [make_prompt("?", id=one) for one in ("c", "new", "a", "c")]
    passed, failed, unknown = rates().at_prompts(prompts)
    assert passed.tolist() == [0.625, 0.0, 4.0, 0.625]
    assert failed.tolist() == [0.0, 0.0, 4.0, 0.0] and unknown == 1  # b
    empty = rates(id=[], passed=[], failed=[], version=[], groups=[])
    passed, failed, unknown = empty.at_prompts(prompts)
    assert passed.tolist() == failed.tolist() == [0.0] * 4 and unknown == 0


def described(**changes: Any) -> dict[str, Any]:
    sampling = {"temperature": 1.0} | changes.pop("sampling", {})
    about = {"format": 1, "run": "r", "weights": None, "version": 0, "pass_threshold": 0.5}
    return about | {"half_life": None, "sampling": sampling} | changes


GOOD = {"id": ["a"], "passed": [1.0], "failed": [0.0]}
HOSTILE: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no description": (GOOD, None, "no entry 'rlax'"),
    "deep JSON": (GOOD, "[" * 50_000, "recursion|depth"),
    "endless description": (GOOD, '"' + "x" * 200_000 + '"', "has 200,002 characters"),
    "a list": (GOOD, "[]", "does not say how it was sampled"),
    "format to come": (GOOD, described(format=2), "format 2, and this version reads format 1"),
    "unknown sampling": (GOOD, described(sampling={"beam": 4}), "sampling.beam"),
    "text as temperature": (
        GOOD,
        described(sampling={"temperature": "1"}),
        "valid sampling.temperature",
    ),
    "NaN half-life": (GOOD, described(half_life=float("nan")), "no valid half_life"),
    "no failed": ({k: GOOD[k] for k in ("id", "passed")}, described(), "no column failed"),
    "numbers as ids": (GOOD | {"id": [7]}, described(), "column id is int64, not string"),
    "a null": (GOOD | {"passed": pa.array([None], pa.float64())}, described(), "passed has a null"),
    "NaN": (GOOD | {"failed": [float("nan")]}, described(), "not a count of samples"),
    "below 0": (GOOD | {"passed": [-1.0]}, described(), "not a count of samples"),
    "no index": (GOOD | {"index": pa.array([-1], pa.int32())}, described(), "index has -1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    columns, about, message = HOSTILE[name]
    table = pa.table(columns)
    if about is not None:
        text = about if isinstance(about, str) else json.dumps(about)
        table = table.replace_schema_metadata({"rlax": text})
    path = str(tmp_path / "rates.parquet")
    pq.write_table(table, path)
    with pytest.raises(RlaxError, match=message) as raised:
        read_table(path)
    assert str(raised.value).startswith(f"{path} is not a table of pass rates: ")


def test_damaged_bytes_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "rates.parquet"
    write_table(str(path), rates())
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[:-9], whole[: len(whole) // 2], b"{}" * 100):
        path.write_bytes(data)
        with pytest.raises(RlaxError, match="is not a table of pass rates"):
            read_table(str(path))
    rng = np.random.default_rng(0)
    for _ in range(50):  # whatever is read from it, nothing but this error may come
        broken = bytearray(whole)
        broken[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with contextlib.suppress(RlaxError):
            read_table(str(path))
    with pytest.raises(FileNotFoundError):
        read_table(str(tmp_path / "gone"))
