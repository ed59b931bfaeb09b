"""The file of ``rlax curate``: each prompt, whether it is kept, and the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.types import Prompt
from rlax_plugin.data.prompts.ids import among, ids_of, read_columns
from rlax_plugin.data.prompts.table import PromptTable

if TYPE_CHECKING:
    import pyarrow as pa

ONLY = "rlax.curation.only"


def schema() -> pa.Schema:
    """Returns the columns: counts, mean and 90 % interval of the posterior, and the decision.

    The counts are those of a table of pass rates. ``reason`` is filled for prompts that are not
    kept, and for prompts that are kept without a measurement.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("domain", pa.string()),
            pa.field("passed", pa.float64(), nullable=False),
            pa.field("failed", pa.float64(), nullable=False),
            pa.field("mean", pa.float64(), nullable=False),
            pa.field("low", pa.float64(), nullable=False),
            pa.field("high", pa.float64(), nullable=False),
            pa.field("kept", pa.bool_(), nullable=False),
            pa.field("reason", pa.string()),
        ]
    )


def kept_ids(path: str) -> pa.Array:
    """Returns the ids that a file keeps, as strings.

    Raises:
      FileNotFoundError: the file does not exist.
      RlaxError: ``rlax curate`` did not write the file, or it cannot be read.
    """
    import pyarrow as pa

    table = read_columns(path, {"id": pa.string(), "kept": pa.bool_()}, "rlax curate")
    ids, kept = (table.column(one).combine_chunks() for one in ("id", "kept"))
    return ids.filter(kept)


def file_digest(path: str) -> str:
    """Returns a hash of the ids that a file of ``rlax curate`` keeps.

    Raises:
      FileNotFoundError, RlaxError: see ``kept_ids``.
    """
    ids = "".join(f"{one}\n" for one in kept_ids(path).to_pylist())
    return hashlib.blake2b(ids.encode(), digest_size=16).hexdigest()


def only_kept(
    prompts: Sequence[Prompt], path: str, note: Callable[[str], object]
) -> Sequence[Prompt]:
    """Returns the prompts that a file keeps, in their order.

    Args:
      path: value of ``rlax.curation.only``.
      note: called with a sentence: the number of prompts kept, and of ids that match no prompt.

    Raises:
      ConfigError: the file cannot be read, or keeps none of the prompts.
    """
    try:
        kept = kept_ids(path).unique()
    except FileNotFoundError:
        raise ConfigError(ONLY, path, "does not exist") from None
    except RlaxError as error:
        raise ConfigError(ONLY, path, f"cannot be used: {error}") from error
    if not len(kept):
        raise ConfigError(ONLY, path, "keeps no prompt: curate again with a wider --keep")
    ids = ids_of(prompts)
    chosen = among(ids, kept)
    unknown = int(np.count_nonzero(~among(kept, ids.combine_chunks())))
    if unknown == len(kept):
        reason = (
            f"has none of the {len(prompts):,} prompts of rlax.prompt_source among the "
            f"{len(kept):,} that it keeps: it was made of other prompts"
        )
        raise ConfigError(ONLY, path, reason)
    indices = np.flatnonzero(chosen)
    strange = f"; {unknown:,} that it keeps are not among them" if unknown else ""
    note(f"{ONLY} keeps {len(indices):,} of {len(prompts):,} prompts{strange}")
    if isinstance(prompts, PromptTable):
        return prompts.subset(indices)
    return [prompts[int(index)] for index in indices]
