"""The file of ``rlax prompts --contamination``: training prompts found in evaluation sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.data.curation.contamination import KINDS, Match, Sets
from rlax_plugin.data.prompts.ids import put_table, read_columns

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
      ConfigError: the file is missing or cannot be read, or is another file.
    """
    import pyarrow as pa

    columns: dict[str, pa.DataType] = {name: pa.string() for name in _COLUMNS}
    try:
        table = read_columns(path, columns, "rlax prompts --contamination")
    except FileNotFoundError:
        raise ConfigError("--without", path, "does not exist") from None
    except RlaxError as error:
        raise ConfigError("--without", path, f"cannot be used: {error}") from error
    return table.column("id").combine_chunks().unique()
