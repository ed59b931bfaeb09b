"""Reads the pass rates of a run's newest snapshot, with the domain of each measured prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlax_plugin.errors import RlaxError
from rlax_plugin.pass_rates.files import unpacked
from rlax_plugin.records.files import RunFiles
from rlax_plugin.resume.snapshots import rates_name, snapshot_steps

if TYPE_CHECKING:
    import pyarrow as pa


ONE_DOMAIN = ("",)
"""The names of the domains if prompts have no domain."""


@dataclass(frozen=True, slots=True, eq=False)
class NewestRates:
    """The pass-rate table of a run as of its newest snapshot.

    Attributes:
      step: step of the snapshot.
      ids: strings [n].
      passed_n, failed_n: float64 [n], numbers of samples; older ones count less.
      groups_n: int64 [n], number of groups of this run; 0: the rate is only that of a prior.
      domain_n: int64 [n], an index into ``domains``.
      domains: names of the measured prompts' domains.
    """

    step: int
    ids: pa.Array
    passed_n: np.ndarray
    failed_n: np.ndarray
    groups_n: np.ndarray
    domain_n: np.ndarray
    domains: tuple[str, ...]

    def rows_of(self, prompts: Sequence[str]) -> np.ndarray:
        """Returns the rows of prompt ids, int64; -1 for a prompt without a pass rate."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(prompts, pa.string())
        found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(self.ids))
        return found.fill_null(-1).to_numpy(False).astype(np.int64)


def newest_rates(files: RunFiles) -> NewestRates | None:
    """Reads the pass rates; returns None if the run has no snapshot yet.

    Raises:
      RlaxError: they are damaged, or the snapshot was removed meanwhile.
    """
    import pyarrow as pa

    if not (steps := snapshot_steps(files)):
        return None
    step, name = steps[-1], rates_name(steps[-1])
    try:
        rates = unpacked(files.get(name), name)
    except FileNotFoundError:
        raise RlaxError(f"{name} does not exist") from None
    passed, failed = rates.counts()
    of_n = rates.table.column("domain").combine_chunks().dictionary_encode()
    names: list[str] = of_n.dictionary.to_pylist()
    return NewestRates(
        step=step,
        ids=rates.table.column("id").combine_chunks().cast(pa.string()),
        passed_n=passed,
        failed_n=failed,
        groups_n=rates.column("groups").astype(np.int64),
        domain_n=of_n.indices.fill_null(len(names)).to_numpy(False).astype(np.int64),
        domains=(*names, "") if of_n.null_count or not names else tuple(names),
    )
