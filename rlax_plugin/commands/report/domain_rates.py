"""Computes the mean pass rate of each domain by step, from the groups in the journal."""

from __future__ import annotations

import numpy as np

from rlax_plugin.commands.report.scored_groups import ScoredGroups
from rlax_plugin.pass_rates.domains import DomainRates
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable


def domain_rates(
    groups: ScoredGroups, domain_p: np.ndarray, domains: int, half_life: float
) -> tuple[list[int], np.ndarray]:
    """Observes the groups again, in their order, as the run's table did, but without a prior.

    Args:
      domain_p: int [used prompts], domain of each prompt, by its number in ``groups``.
      domains: number of domains.
      half_life: half-life of a sample, in policy versions.

    Returns:
      The steps in which a group was scored, ascending; and float64 [domains, steps], the mean rate
      of the prompts used so far, each of which counts once; NaN before the domain's first one.
    """
    table = PassRateTable(len(domain_p), half_life)
    means = DomainRates(table, domain_p, domains)
    names = ("prompt", "step", "passed", "scored", "version")
    rows = zip(*(groups.column(name).tolist() for name in names), strict=True)
    found: dict[int, list[float]] = {}
    now: int | None = None

    def note() -> None:
        if now is not None:
            each = (means.mean(domain) for domain in range(domains))
            found[now] = [np.nan if mean is None else mean for mean in each]

    for prompt, step, passed, scored, version in rows:
        if step != now:
            note()
            now = step
        if prompt >= 0:
            table.observe(prompt, passed, scored - passed, version)
            means.observed(prompt)
    note()
    return list(found), np.array(list(found.values()), np.float64).reshape(-1, domains).T
