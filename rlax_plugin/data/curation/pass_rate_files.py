"""Tables of pass rates as Parquet: one format for snapshots, measurements, exports, priors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import file_at
from rlax_plugin.base.types import Prompt, SamplingParams
from rlax_plugin.data.prompts.ids import ids_of

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
_KEY = b"rlax"
_MOST_ROWS = 100_000_000
_MOST_CHARACTERS = 100_000  # of what describes a file
_NEEDED = ("id", "passed", "failed")
# Counts of which a negative one makes no sense; null: it was not counted.
_COUNTS = ("index", "groups", "truncated", "tokens", "errored")


@dataclass(frozen=True, slots=True)
class About:
    """The policy that was measured, and the settings of the measurement.

    Attributes:
      run: name of the run whose policy was measured.
      weights: source of the policy's weights; None: they are the run's own.
      version: the newest policy version that was measured, to which the counts are decayed.
      sampling: settings with which samples were generated.
      pass_threshold: smallest reward that counted as a pass.
      half_life: policy versions after which a sample counts half; None: nothing decays.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    weights: str | None
    version: Annotated[int, Field(ge=0, lt=2**31)]
    sampling: SamplingParams
    pass_threshold: float
    half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def differs(self, other: About) -> str | None:
        """Describes settings of another measurement that make its pass rates incomparable.

        Returns:
          A text such as ``temperature 0.7 instead of 1.0``, the other's value first; None if the
          pass rates are comparable.
        """
        ours: dict[str, Any] = asdict(self.sampling) | {"pass_threshold": self.pass_threshold}
        theirs: dict[str, Any] = asdict(other.sampling) | {"pass_threshold": other.pass_threshold}
        found = [
            f"{name} {_shown(theirs[name])} instead of {_shown(value)}"
            for name, value in ours.items()
            if value != theirs[name]
        ]
        return ", ".join(found) or None


_ABOUT = TypeAdapter(About)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRates:
    """The contents of a file of pass rates.

    Attributes:
      table: one row per prompt, with the columns of ``schema``.
      about: the measurement of all rows.
    """

    table: pa.Table
    about: About

    def column(self, name: str) -> np.ndarray:
        """Returns one of the numeric columns; a missing count is 0."""
        import pyarrow.compute as pc

        return pc.fill_null(self.table.column(name), 0).to_numpy()

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (passed, failed) samples of each row, float64, decayed to ``about.version``."""
        passed, failed = self.column("passed"), self.column("failed")
        if self.about.half_life is None:
            return passed, failed
        age = np.maximum(self.about.version - self.column("version").astype(np.float64), 0)
        kept = np.exp2(-age / self.about.half_life)
        return passed * kept, failed * kept

    def by_id(self) -> pa.Table:
        """Returns one row for each id: ``id``, ``domain``, and the sums of ``counts``."""
        passed, failed = self.counts()
        rows = self.table.select(["id", "domain"])
        rows = rows.append_column("passed", [passed]).append_column("failed", [failed])
        sums = rows.group_by("id", use_threads=False).aggregate(
            [("domain", "first"), ("passed", "sum"), ("failed", "sum")]
        )
        sums = sums.select(["id", "domain_first", "passed_sum", "failed_sum"])
        return sums.rename_columns(["id", "domain", "passed", "failed"])

    def at_prompts(self, prompts: Sequence[Prompt]) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns the counts for the prompts of a split.

        Returns:
          passed_n, failed_n: float64 [prompts]; 0 for prompts that the table does not contain.
          unknown: number of ids of the table that match none of the prompts.
        """
        import pyarrow.compute as pc

        sums = self.by_id()
        ids = sums.column("id").combine_chunks()
        if not len(ids):
            return np.zeros(len(prompts)), np.zeros(len(prompts)), 0
        place = pc.call_function("index_in", [ids_of(prompts)], pc.SetLookupOptions(ids))
        known, row = ~place.is_null().to_numpy(), place.fill_null(0).to_numpy()
        passed, failed = (
            np.where(known, sums.column(name).to_numpy()[row], 0.0) for name in ("passed", "failed")
        )
        # np.unique would hold the interpreter for a second per million prompts.
        of_prompts = np.zeros(len(ids), bool)
        of_prompts[row[known]] = True
        return passed, failed, int(np.count_nonzero(~of_prompts))


def schema() -> pa.Schema:
    """Returns the columns of a table of pass rates.

    ``index`` is the index of the prompt in the run's split; only snapshots have it. ``passed`` and
    ``failed`` are decayed to ``version``, the row's newest. ``streak``: see
    ``PassRateTable.streaks``.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("index", pa.int32()),
            pa.field("domain", pa.string()),
            pa.field("passed", pa.float64(), nullable=False),
            pa.field("failed", pa.float64(), nullable=False),
            pa.field("version", pa.int32()),
            pa.field("groups", pa.int32()),
            pa.field("streak", pa.int32()),
            pa.field("truncated", pa.int32()),
            pa.field("tokens", pa.int64()),
            pa.field("errored", pa.int32()),
        ]
    )


def measured(columns: Mapping[str, Any], about: About) -> MeasuredRates:
    """Returns a table made of columns; those that are left out are null.

    Args:
      columns: name -> values; at least ``id``, ``passed`` and ``failed``.
    """
    import pyarrow as pa

    wanted, rows = schema(), len(columns["id"])
    made = [
        pa.chunked_array([pa.nulls(rows, field.type)])
        if field.name not in columns
        else _array(columns[field.name], field.type)
        for field in wanted
    ]
    return MeasuredRates(pa.table(made, schema=wanted), about)


def _array(values: Any, kind: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values.cast(kind)
    if isinstance(values, pa.Array):
        return pa.chunked_array([values.cast(kind)])
    return pa.chunked_array([pa.array(values, kind)])


# --- bytes -------------------------------------------------------------------------------------


def packed(rates: MeasuredRates) -> bytes:
    """Returns the bytes of a file; releases the interpreter lock meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = json.dumps({"format": FORMAT, **asdict(rates.about)}).encode()
    sink = pa.BufferOutputStream()
    table = rates.table.replace_schema_metadata({_KEY: about})
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return sink.getvalue().to_pybytes()


def unpacked(data: bytes, name: str) -> MeasuredRates:
    """Reads the bytes that ``packed`` returned.

    Args:
      name: name of the file, for messages.

    Raises:
      RlaxError: the bytes are not a table of pass rates, or contain impossible values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{file.metadata.num_rows:,} rows, more than {_MOST_ROWS:,}")
        about = _about(file.schema_arrow.metadata)
        there = file.schema_arrow
        if missing := [column for column in _NEEDED if column not in there.names]:
            raise ValueError(f"it has no column {missing[0]}")
        wanted = [field for field in schema() if field.name in there.names]
        for field in wanted:
            if there.field(field.name).type != field.type:
                kind = there.field(field.name).type
                raise ValueError(f"its column {field.name} is {kind}, not {field.type}")
        table = file.read(columns=[field.name for field in wanted])
        rates = measured({field.name: table.column(field.name) for field in wanted}, about)
        _check_rows(rates.table)
    except (ValueError, TypeError, LookupError, OSError, RecursionError, pa.ArrowException) as why:
        raise RlaxError(f"{name} is not a table of pass rates: {why}") from why
    return rates


def read_table(path: str) -> MeasuredRates:
    """Reads a file.

    Args:
      path: local, or an fsspec URL.

    Raises:
      FileNotFoundError: the file does not exist.
      RlaxError: it is not a table of pass rates, or cannot be read.
    """
    files, name = file_at(path)
    return unpacked(files.get(name), path)


def write_table(path: str, rates: MeasuredRates) -> None:
    """Writes a file atomically.

    Raises:
      RlaxError: the file cannot be written.
    """
    files, name = file_at(path)
    files.put(name, packed(rates))


def _about(metadata: Mapping[bytes, bytes] | None) -> About:
    text = (metadata or {}).get(_KEY)
    if text is None:
        raise ValueError("its Parquet metadata has no entry 'rlax'")
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"its entry 'rlax' has {len(text):,} characters")
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("sampling"), dict):
        raise ValueError("its entry 'rlax' does not say how it was sampled")
    if (number := document.pop("format", None)) != FORMAT:
        raise ValueError(f"it has format {number!r}, and this version reads format {FORMAT}")
    try:
        return _ABOUT.validate_json(json.dumps(document), strict=True)  # of JSON a list is a tuple
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"its entry 'rlax' has no valid {key}: {first['msg']}") from None


def _check_rows(table: pa.Table) -> None:
    import pyarrow.compute as pc

    for name in _NEEDED:
        if table.column(name).null_count:
            raise ValueError(f"its column {name} has a null")
    for name in ("passed", "failed"):
        values = table.column(name).to_numpy()
        # 2**53: the largest count that is exact.
        if not np.all((values >= 0) & (values < 2.0**53)):
            raise ValueError(f"its column {name} has a value that is not a count of samples")
    for name in _COUNTS:
        least = pc.call_function("min", [table.column(name)]).as_py()
        if least is not None and least < 0:
            raise ValueError(f"its column {name} has {least}")


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
