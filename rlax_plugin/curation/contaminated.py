"""The file of ``rlax prompts --contamination``: training prompts found in evaluation sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlax_plugin.curation.contamination import KINDS, Match, Sets
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.prompts.ids import put_table
from rlax_plugin.records.files import file_at

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("id", "set", "kind", "evaluation_id")


def write_contaminated(path: str, ids: Sequence[str], matches: Sequence[Match], sets: Sets) -> None:
    """Writes one row for each training prompt and evaluation set.

    Args:
      ids: the ids of the training prompts of ``matches``, in their order.

    Raises:
      RlaxError: the file cannot be written.
    """
    import pyarrow as pa

    problems = [sets.problems[match.problem] for match in matches]
    columns = (
        list(ids),
        [sets.names[problem.held_out] for problem in problems],
        [KINDS[match.kind] for match in matches],
        [problem.id for problem in problems],
    )
    put_table(path, pa.table([pa.array(one, pa.string()) for one in columns], names=_COLUMNS))


def contaminated_ids(path: str) -> pa.Array:
    """Returns the ids that ``rlax curate --without`` removes.

    Raises:
      ConfigError: the file is missing, or ``write_contaminated`` did not write it.
      RlaxError: the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files, name = file_at(path)
        file = pq.ParquetFile(pa.BufferReader(files.get(name)))
        # Any other file with ids, such as one of pass rates, would remove all of its prompts.
        if missing := [one for one in _COLUMNS if one not in file.schema_arrow.names]:
            raise ValueError(f"it has no column {missing[0]}")
        ids = file.read(columns=["id"]).column("id").combine_chunks()
        if ids.type != pa.string() or ids.null_count:
            raise ValueError("its column id is not text")
    except FileNotFoundError:
        raise ConfigError("--without", path, "does not exist") from None
    except RlaxError:
        raise
    except (ValueError, LookupError, OSError, pa.ArrowException) as why:
        reason = f"is not a file of rlax prompts --contamination: {why}"
        raise ConfigError("--without", path, reason) from why
    return ids.unique()
