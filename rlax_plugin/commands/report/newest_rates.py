"""The pass rates of a run's newest snapshot: of each prompt that was measured, with its domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlax_plugin.errors import RlaxError
from rlax_plugin.pass_rates.files import unpacked
from rlax_plugin.records.files import RunFiles
from rlax_plugin.resume.snapshots import rates_name, snapshot_name, snapshot_steps

if TYPE_CHECKING:
    import pyarrow as pa


ONE_DOMAIN = ("",)
"""The names of the domains where prompts have none."""


@dataclass(frozen=True, slots=True, eq=False)
class NewestRates:
    """The pass-rate table of a run as of its newest snapshot.

    Attributes:
      step: of the snapshot.
      ids: strings [n].
      passed_n, failed_n: float64 [n], samples; older ones count less.
      groups_n: int64 [n], groups of this run; 0: the rate is only that of a prior.
      domain_n: int64 [n], an index into ``domains``.
      domains: names of those of the measured prompts.
    """

    step: int
    ids: pa.Array
    passed_n: np.ndarray
    failed_n: np.ndarray
    groups_n: np.ndarray
    domain_n: np.ndarray
    domains: tuple[str, ...]

    def rows_of(self, prompts: Sequence[str]) -> np.ndarray:
        """int64, the row of each of some prompt ids; -1: it has no pass rate."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(prompts, pa.string())
        found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(self.ids))
        return found.fill_null(-1).to_numpy(False).astype(np.int64)


def newest_rates(files: RunFiles) -> NewestRates | None:
    """Reads them; None if the run has no snapshot yet.

    Raises:
      RlaxError: they are damaged, or the snapshot was removed meanwhile.
    """
    import pyarrow as pa

    if not (steps := snapshot_steps(files)):
        return None
    step, name = steps[-1], rates_name(steps[-1])
    document = files.get_json(snapshot_name(step)) or {}
    if (inline := document.get("run_state", {}).get("pass_rates")) is not None:
        return _of_earlier_version(step, inline)
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


def _of_earlier_version(step: int, inline: dict[str, tuple[float, float]]) -> NewestRates:
    """Of a document that has the rates within: prompt id -> (passed, all)."""
    import pyarrow as pa

    counts = np.array(list(inline.values()), np.float64).reshape(-1, 2)
    rows = len(counts)
    return NewestRates(
        step=step,
        ids=pa.array(list(inline), pa.string()),
        passed_n=counts[:, 0],
        failed_n=counts[:, 1] - counts[:, 0],
        groups_n=np.ones(rows, np.int64),
        domain_n=np.zeros(rows, np.int64),
        domains=ONE_DOMAIN,
    )
