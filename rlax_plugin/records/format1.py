"""Reads what runs wrote until format 2: for commands that look at a run. None is resumed.

Journal segments lay in one directory, ``journal/<number>.json``, and named two files of samples:
``batches/<step>.parquet`` and ``rollouts/<number>.parquet``, one row per completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.samples import OPTIONAL, SCHEMA

DIRECTORIES = ("batches", "rollouts")
_RENAMED = {
    "group_id": "group",
    "prompt_tokens": "given",
    "logprob_full": "logprobs",
    "measured_pass_rate": "pass_rate_before",
}


def is_format1(files: RunFiles) -> bool:
    """Whether a run was recorded in this format."""
    return files.exists(segment_name(1))


def segment_name(number: int) -> str:
    return f"journal/{number:08d}.json"


def segment_numbers(files: RunFiles) -> list[int]:
    """Numbers of all segments, ascending."""
    parts = (name.partition(".") for name in files.names("journal"))
    return sorted(int(stem) for stem, _, kind in parts if stem.isdecimal() and kind == "json")


def sample_files(files: RunFiles) -> list[str]:
    """Names of all files of samples."""
    return [
        f"{directory}/{name}"
        for directory in DIRECTORIES
        for name in files.names(directory)
        if name.endswith(".parquet")
    ]


def upgraded_segment(document: Mapping[str, Any]) -> dict[str, Any]:
    """A segment's document as format 2 has it."""
    found = dict(document)
    records = [found.pop("batch"), found.pop("rollouts")]
    found["samples"] = [
        {"name": one["name"], "rows": one["samples"], "crc32c": one["crc32c"]}
        for one in records
        if one is not None
    ]
    found["events"] = [_upgraded_event(event) for event in found["events"]]
    return found


def _upgraded_event(event: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(event)
    if found.get("event") == "generated":
        found["workers"] = str(found.pop("worker")).split("+")
    return found


def upgraded_rows(name: str, table: pa.Table) -> pa.Table:
    """The rows of a file as format 2 has them.

    Raises:
      LookupError, pa.ArrowException: it is no such file.
    """
    names = [_RENAMED.get(column, column) for column in table.column_names]
    table = table.rename_columns(names)
    count = table.num_rows
    one = pa.array(range(count + 1), pa.int32())  # one turn in each row
    trained = name.startswith("batches/")
    accepted = "trained" if trained else "accepted"
    reasons = table["rejected"].to_pylist()
    made: dict[str, Any] = {
        "state": pa.array([accepted if why is None else "rejected" for why in reasons]),
        "trajectory": pa.array([0] * count, pa.int32()),
        "seeds": pa.ListArray.from_arrays(one, table["seed"].combine_chunks()),
        "finish": pa.ListArray.from_arrays(one, table["finish_reason"].combine_chunks()),
        "workers": pa.array([str(name).split("+") for name in table["worker"].to_pylist()]),
    }
    columns = []
    for field in SCHEMA:
        if field.name in made:
            column = made[field.name]
        elif field.name in names:
            column = table[field.name]
        elif field.name in OPTIONAL:
            column = pa.nulls(count, field.type)
        else:
            raise LookupError(f"it has no column {field.name}")
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=SCHEMA)
