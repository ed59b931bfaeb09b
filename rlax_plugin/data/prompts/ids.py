"""Columns of the ids and domains of prompts, and the Parquet files that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import file_at
from rlax_plugin.base.types import Prompt
from rlax_plugin.data.prompts.table import JoinedPrompts, PromptTable, id_at

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 16  # rows: how long the interpreter is held at once


def among(values: pa.Array | pa.ChunkedArray, wanted: pa.Array) -> np.ndarray:
    """True for each value that is among the wanted ones; bool array."""
    import pyarrow.compute as pc

    found: Any = pc.is_in(values, value_set=wanted)  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def put_table(path: str, table: pa.Table) -> None:
    """Writes a Parquet file atomically.

    Raises:
      RlaxError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files, name = file_at(path)
    files.put(name, sink.getvalue().to_pybytes())


def read_columns(path: str, columns: Mapping[str, pa.DataType], command: str) -> pa.Table:
    """Reads columns without nulls of a Parquet file.

    Args:
      columns: name -> type; any other file, such as one of pass rates, lacks one of them.
      command: the command that writes such files, for messages.

    Raises:
      FileNotFoundError: the file does not exist.
      RlaxError: it is another file, or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, name = file_at(path)
    data = files.get(name)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if missing := [one for one in columns if one not in file.schema_arrow.names]:
            raise ValueError(f"it has no column {missing[0]}")
        table = file.read(columns=list(columns))
        for one, kind in columns.items():
            if (column := table.column(one)).type != kind or column.null_count:
                raise ValueError(f"its column {one} is not {kind} without a null")
        return table
    except (ValueError, LookupError, OSError, pa.ArrowException) as why:
        raise RlaxError(f"{path} is not a file of {command}: {why}") from why


def ids_of(prompts: Sequence[Prompt], indices: np.ndarray | None = None) -> pa.ChunkedArray:
    """The ids of some prompts, or of all, as strings.

    Args:
      indices: int [n], in any order.
    """
    import pyarrow as pa

    rows = np.arange(len(prompts)) if indices is None else indices
    if not isinstance(prompts, PromptTable):
        found = pa.array([id_at(prompts, int(i)) for i in rows], pa.string())
        return pa.chunked_array([found], pa.string())
    chunks = [_hex(prompts.ids[rows[i : i + _CHUNK]]) for i in range(0, len(rows), _CHUNK)]
    return pa.chunked_array(chunks, pa.string())


def domains_of(prompts: Sequence[Prompt], indices: np.ndarray) -> pa.Array:
    """Returns the domains of some prompts; null if all prompts belong to one domain."""
    import pyarrow as pa

    if isinstance(prompts, JoinedPrompts):  # the environment of each, and its domain there
        return pa.array([prompts.domain_at(index) for index in indices.tolist()], pa.string())
    if not isinstance(prompts, PromptTable) or prompts.domains is None:
        return pa.nulls(len(indices), pa.string())
    numbers = prompts.domains.of_n[indices].astype(np.int32)
    names = pa.array(prompts.domains.names, pa.string())
    return pa.DictionaryArray.from_arrays(numbers, names).cast(pa.string())


_DIGITS = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)


def _hex(ids: np.ndarray) -> pa.Array:
    import pyarrow as pa

    count, width = len(ids), 2 * ids.shape[1]
    text = np.take(_DIGITS, ids.reshape(-1), axis=0)
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text))
