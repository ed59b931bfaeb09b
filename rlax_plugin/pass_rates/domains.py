"""Mean pass rates of whole domains, kept up to date with each observation."""

from __future__ import annotations

import numpy as np

from rlax_plugin.pass_rates.pass_rate_table import PassRateTable

_UNITS = 1_000_000  # per 1; in whole numbers a sum does not depend on its order


class DomainRates:
    """The mean of the pass rates of each domain's measured prompts; each prompt counts once.

    The sampler decides how often a prompt is generated, so a mean over samples would say more about
    the sampler than about the policy.

    Args:
      rates: the pass rates of the prompts; call ``observed`` after each change.
      of_n: int [n], the domain of each prompt.
      count: number of domains.
    """

    def __init__(self, rates: PassRateTable, of_n: np.ndarray, count: int):
        self._rates, self._of_n = rates, of_n
        self._prompts = np.bincount(of_n, minlength=count)
        self.recount()

    def recount(self) -> None:
        """Recomputes all domains, after the table has changed as a whole."""
        mean, known, count = self._rates.mean(), self._rates.measured(), len(self._prompts)
        self._units_n = np.where(known, np.rint(_UNITS * np.nan_to_num(mean)), -1).astype(np.int32)
        of, units = self._of_n[known], self._units_n[known]
        self._measured = np.bincount(of, minlength=count)
        self._sums = np.bincount(of, weights=units, minlength=count).astype(np.int64)

    def observed(self, index: int) -> None:
        """Updates a domain after the pass rate of one of its prompts has changed."""
        if (rate := self._rates.rate(index)) is None:
            return
        domain, before, now = self._of_n[index], int(self._units_n[index]), round(_UNITS * rate)
        if before < 0:
            self._measured[domain] += 1
        self._sums[domain] += now - max(before, 0)
        self._units_n[index] = now

    def mean(self, domain: int, min_prompts: int = 1) -> float | None:
        """Returns the mean pass rate of a domain.

        Args:
          min_prompts: None is returned until this many of its prompts, or all, are measured.
        """
        measured = int(self._measured[domain])
        if not measured or measured < min(min_prompts, int(self._prompts[domain])):
            return None
        return int(self._sums[domain]) / measured / _UNITS
