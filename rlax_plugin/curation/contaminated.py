"""The file of ``rlax prompts --contamination``: training prompts that an evaluation has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlax_plugin.curation.columns import put_table
from rlax_plugin.curation.contamination import KINDS, Match, Sets
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.records.files import file_at

if TYPE_CHECKING:
    import pyarrow as pa


def write_contaminated(path: str, ids: Sequence[str], matches: Sequence[Match], sets: Sets) -> None:
    """Writes one row for each training prompt and evaluation set.

    Args:
      ids: of the training prompts of ``matches``, in their order.

    Raises:
      RlaxError: it cannot be written.
    """
    import pyarrow as pa

    problems = [sets.problems[match.problem] for match in matches]
    columns = {
        "id": list(ids),
        "set": [sets.names[problem.held_out] for problem in problems],
        "kind": [KINDS[match.kind] for match in matches],
        "evaluation_id": [problem.id for problem in problems],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    put_table(path, table)


def contaminated_ids(path: str) -> pa.Array:
    """The ids that ``rlax curate --without`` removes: the column id of a Parquet file.

    Raises:
      ConfigError: there is no such file, or it has no ids.
      RlaxError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files, name = file_at(path)
        table = pq.read_table(pa.BufferReader(files.get(name)), columns=["id"])
        ids = table.column("id").combine_chunks()
        if ids.type != pa.string() or ids.null_count:
            raise ValueError("its column id is not text")
    except FileNotFoundError:
        raise ConfigError("--without", path, "does not exist") from None
    except RlaxError:
        raise
    except (ValueError, LookupError, OSError, pa.ArrowException) as why:
        reason = f"is no Parquet file with a column id: {why}"
        raise ConfigError("--without", path, reason) from why
    return ids.unique()
