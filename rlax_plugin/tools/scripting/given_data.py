"""The data of a call of ``train``: names of files, or rows that are written as a file."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.scripting.literals import check_json, described


@dataclass(slots=True)
class GivenData:
    """Data as ``rlax init --data`` takes it.

    Attributes:
      path: files or a directory, as they were given; empty: see ``name``.
      name: name of the file that is to be written beside the config; empty if none is.
      content: content of that file.
    """

    path: str = ""
    name: str = ""
    content: bytes = field(default=b"", repr=False)


def given_data(given: Any) -> GivenData:
    """Returns the data of a call, after checking it.

    Args:
      given: names of files, a list of dicts, a ``datasets.Dataset``, or None.

    Raises:
      ConfigError: it is something else, or has values that a file cannot contain exactly.
    """
    if given is None:
        return GivenData()
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if not isinstance(path, str) or not path:
            raise ConfigError("data", path, "must be the name of a file, as text")
        return GivenData(path=path)
    library = sys.modules.get("datasets")
    if library is not None and isinstance(given, library.Dataset):
        return GivenData(name="data.parquet", content=_parquet(given))
    if library is not None and isinstance(given, library.DatasetDict):
        splits = ", ".join(map(repr, given))
        reason = f"has the splits {splits}: give one of them, such as data[{next(iter(given))!r}]"
        raise ConfigError("data", "a DatasetDict", reason)
    if isinstance(given, list | tuple):
        return GivenData(name="data.jsonl", content=_json_lines(given))
    reason = "must be the name of a file, a list of dicts, or a datasets.Dataset"
    raise ConfigError("data", described(given), reason)


def _json_lines(rows: list[Any] | tuple[Any, ...]) -> bytes:
    if not rows:
        raise ConfigError("data", rows, "must have at least one row")
    lines = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            reason = "must be a dict with the columns of a row, such as question and answer"
            raise ConfigError(f"data[{number}]", described(row), reason)
        for name, value in row.items():
            check_json(f"data[{number}][{name!r}]", value)
        check_json(f"data[{number}]", dict(row))
        lines.append(json.dumps(dict(row), ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def _parquet(dataset: Any) -> bytes:
    """Returns the rows of a ``datasets.Dataset``, with the types that it has.

    Raises:
      ConfigError: it is empty, or a column has a type that prompts cannot have.
    """
    if not len(dataset):
        raise ConfigError("data", "a Dataset", "must have at least one row")
    for column in dataset.features.arrow_schema:
        if not _plain(column.type):
            reason = "must be text, numbers, booleans, or lists or structs of these"
            raise ConfigError(f"data[{column.name!r}]", str(column.type), reason)
    import pyarrow.parquet as pq

    out = io.BytesIO()
    # The bytes are the data's identity, so nothing that another version of the library writes.
    table = dataset.with_format("arrow")[:]
    pq.write_table(table.replace_schema_metadata(None), out)
    return out.getvalue()


def _plain(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_plain(kind.field(number).type) for number in range(kind.num_fields))
    tests = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean),
        *(pa.types.is_integer, pa.types.is_floating, pa.types.is_null),
    )
    return any(test(kind) for test in tests)
