"""Joins tables of pass rates of several runs, and looks up their counts for a run's prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlax_plugin.errors import RlaxError
from rlax_plugin.pass_rates.files import About, MeasuredRates, measured
from rlax_plugin.prompts.ids import ids_of
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.types import Prompt

if TYPE_CHECKING:
    import pyarrow as pa


def joined(tables: Sequence[MeasuredRates], *, any_sampling: bool = False) -> MeasuredRates:
    """Returns the sums of several tables, by prompt id.

    The versions of different runs cannot be compared, so each table is decayed to its own newest
    version and does not decay further: ``half_life`` of the result is None.

    Args:
      tables: at least one table.
      any_sampling: also joins tables with different sampling settings; the result has the first
        one's description.

    Raises:
      RlaxError: the tables have different sampling settings.
    """
    import pyarrow as pa

    first = tables[0].about
    for one in tables[1:]:
        if not any_sampling and (why := first.differs(one.about)) is not None:
            raise RlaxError(f"{one.about.run} and {first.run} cannot be joined: it has {why}")
    ids = pa.chunked_array(
        [chunk for one in tables for chunk in one.table.column("id").chunks], pa.string()
    )
    codes, names = _codes(ids)
    counts = [one.counts() for one in tables]
    sums = {
        "passed": _summed(codes, np.concatenate([passed for passed, _ in counts]), len(names)),
        "failed": _summed(codes, np.concatenate([failed for _, failed in counts]), len(names)),
    }
    for name in ("groups", "truncated", "tokens", "errored"):
        if all(not one.table.column(name).null_count for one in tables):
            values = np.concatenate([one.column(name) for one in tables])
            sums[name] = _summed(codes, values, len(names)).astype(np.int64)
    newest = np.full(len(names), -1, np.int64)
    np.maximum.at(newest, codes, np.concatenate([one.column("version") for one in tables]))
    domains = pa.chunked_array(
        [chunk for one in tables for chunk in one.table.column("domain").chunks], pa.string()
    )
    _, place = np.unique(codes, return_index=True)
    columns = {"id": names, "domain": domains.take(pa.array(place)), "version": newest, **sums}
    return measured(columns, _described(tables))


def _described(tables: Sequence[MeasuredRates]) -> About:
    abouts = [one.about for one in tables]
    weights = {about.weights for about in abouts}
    return dataclasses.replace(
        abouts[0],
        run=", ".join(dict.fromkeys(about.run for about in abouts)),
        weights=abouts[0].weights if len(weights) == 1 else None,
        version=max(about.version for about in abouts),
        half_life=None,
    )


def at_prompts(
    rates: MeasuredRates, prompts: Sequence[Prompt]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns a table's counts for the prompts of a split.

    Returns:
      passed_n, failed_n: float64 [prompts]; 0 for prompts that the table does not contain.
      unknown: number of rows of the table that match none of the prompts.
    """
    import pyarrow.compute as pc

    codes, names = _codes(rates.table.column("id"))
    passed, failed = (_summed(codes, values, len(names)) for values in rates.counts())
    place = pc.call_function("index_in", [ids_of(prompts)], pc.SetLookupOptions(names))
    known = ~place.is_null().to_numpy()
    found = place.fill_null(0).to_numpy()
    if not len(names):
        return np.zeros(len(prompts)), np.zeros(len(prompts)), 0
    # np.unique would hold the interpreter for a second per million prompts.
    of_prompts = np.zeros(len(names), bool)
    of_prompts[found[known]] = True
    unknown = int(np.count_nonzero(~of_prompts))
    return np.where(known, passed[found], 0.0), np.where(known, failed[found], 0.0), unknown


def domains_of(prompts: Sequence[Prompt], indices: np.ndarray) -> pa.Array:
    """Returns the domains of some prompts; null if all prompts belong to one domain."""
    import pyarrow as pa

    if not isinstance(prompts, PromptTable) or prompts.domains is None:
        return pa.nulls(len(indices), pa.string())
    numbers = prompts.domains.of_n[indices].astype(np.int32)
    names = pa.array(prompts.domains.names, pa.string())
    return pa.DictionaryArray.from_arrays(numbers, names).cast(pa.string())


def _codes(ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns (code of each row's id, distinct ids), in the order of their first rows."""
    encoded = ids.combine_chunks().dictionary_encode()
    if hasattr(encoded, "combine_chunks"):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(), encoded.dictionary


def _summed(codes: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(codes, weights=values, minlength=count)
