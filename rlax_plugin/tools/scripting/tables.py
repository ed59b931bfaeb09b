"""The records of a run as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rlax_plugin.base.errors import ConfigError, RlaxError, alternatives
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics import file
from rlax_plugin.run.state.read_samples import rows_of
from rlax_plugin.run.state.samples import SCHEMA, SIDE

_NEEDED = ("step", "state", "group")


def metrics_table(content: bytes) -> pa.Table:
    """Returns the metrics of a file ``metrics.jsonl``: a row for each step, a column for each.

    A value is null in a step that does not report the metric.

    Raises:
      RlaxError: the file is damaged.
    """
    recorded = file.read(content)
    if recorded.damaged:
        raise RlaxError(f"{file.NAME} is damaged: line {recorded.damaged[0]} cannot be read")
    try:
        return _metrics_table(recorded.by_step)
    except (ValueError, TypeError) as error:  # pyarrow's errors are among these
        raise RlaxError(f"{file.NAME} is damaged: {error}") from None


def _metrics_table(by_step: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    rows = [row for _, row in sorted(by_step.items())]
    names = sorted({name for row in rows for name in row} - {"step"})
    columns = {"step": pa.array([row["step"] for row in rows], pa.int64())}
    for name in names:
        values = [row.get(name) for row in rows]
        columns[name] = pa.array([None if v is None else float(v) for v in values], pa.float64())
    return pa.table(columns)


def samples_table(
    files: RunFiles, columns: list[str] | None = None, steps: range | None = None
) -> pa.Table:
    """Returns the scored samples of a run, each once, in the order of its files.

    Args:
      columns: names of columns; None: all, including side channels.
      steps: only samples with these steps; None: all.

    Raises:
      ConfigError: there is no such column.
      RlaxError: a file is damaged.
    """
    for name in columns or ():
        if name not in SCHEMA.names and not str(name).startswith(SIDE):
            known = alternatives(str(name), SCHEMA.names)
            raise ConfigError("columns", name, f"the samples have no such column; {known}")
    read = None if columns is None else sorted({*columns, *_NEEDED})
    tables = [
        rows_of(files.get(name), name, read) for name in _names(files) if name.endswith(".parquet")
    ]
    if not tables:
        tables = [SCHEMA.empty_table() if read is None else SCHEMA.empty_table().select(_own(read))]
    table = pa.concat_tables(tables, promote_options="default")
    # A group that waited for its batch is recorded when it was accepted and when it was trained.
    trained = table.filter(pc.field("state") == "trained")["group"].unique().to_pylist()
    waited = (pc.field("state") == "accepted") & pc.field("group").isin(trained)
    table = table.filter(~waited)
    if steps is not None:
        table = table.filter(pc.field("step").isin(list(steps)))
    return table if columns is None else table.select(columns)


def _own(names: list[str]) -> list[str]:
    return [name for name in names if name in SCHEMA.names]


def _names(files: RunFiles) -> list[str]:
    return [
        f"samples/{folder}/{name}"
        for folder in files.names("samples")
        if folder.isdigit()
        for name in files.names(f"samples/{folder}")
    ]
