"""Columns of ids, and the Parquet files that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin.records.files import file_at

if TYPE_CHECKING:
    import pyarrow as pa


def among(values: pa.Array | pa.ChunkedArray, wanted: pa.Array) -> np.ndarray:
    """Returns bool [values]: True for values that are among the wanted ones."""
    import pyarrow.compute as pc

    found: Any = pc.is_in(values, value_set=wanted)  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def put_table(path: str, table: pa.Table) -> None:
    """Writes a Parquet file atomically.

    Raises:
      RlaxError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files, name = file_at(path)
    files.put(name, sink.getvalue().to_pybytes())
