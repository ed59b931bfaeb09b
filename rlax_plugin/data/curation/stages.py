"""Stages: weights of the domains that change during a run, whatever the sampler.

A sampler sees the prompts with other weights; it need not know why.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import Stage
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.data.prompts.table import PromptTable

_KEY = "rlax.curation.stages"
_ROUNDING = 1e-6  # counts are float32


def check_stages(stages: Sequence[Stage], prompts: Sequence[Prompt]) -> None:
    """Checks that the training prompts have the domains that the stages name.

    Raises:
      ConfigError: a domain has no prompts; the message names the existing domains.
    """
    if not stages:
        return
    if not isinstance(prompts, PromptTable) or prompts.domains is None:
        reason = (
            "needs training prompts of several domains: set rlax.prompt_source.domain, or use the "
            "prompt source mixture"
        )
        raise ConfigError(_KEY, None, reason)
    known = {
        name
        for name, places in zip(prompts.domains.names, prompts.domains.places(), strict=True)
        if places.size
    }
    for number, stage in enumerate(stages):
        for field, given in (
            ("weights", stage.weights),
            ("until_pass_rate", stage.until_pass_rate),
        ):
            for name in given:
                if name not in known:
                    reason = f"no training prompt is of this domain; {alternatives(name, known)}"
                    raise ConfigError(f"{_KEY}.{number}.{field}", name, reason)


class Stages:
    """The stages of a run and the one it is in.

    Args:
      prompts: all training prompts; samplers see a view of them.
      rates: pass rates of the run.

    Attributes:
      number: number of completed stages; a completed stage never starts again. A resume sets it.

    Raises:
      ConfigError: see ``check_stages``.
    """

    def __init__(
        self, stages: Sequence[Stage], prompts: Sequence[Prompt], rates: PassRateTable
    ) -> None:
        check_stages(stages, prompts)
        self._stages, self._rates, self.number = stages, rates, 0
        self._views: list[Sequence[Prompt]] = [prompts]
        self._places: dict[str, np.ndarray] = {}  # of the prompts of each domain
        if stages:
            assert isinstance(prompts, PromptTable) and prompts.domains is not None
            # One view per stage: samplers go on as long as they see the same.
            self._views = [*(prompts.weighted(stage.weights) for stage in stages), prompts]
            domains = prompts.domains
            self._places = dict(zip(domains.names, domains.places(), strict=True))

    def __len__(self) -> int:
        return len(self._stages)

    def prompts(self, step: int) -> Sequence[Prompt]:
        """All prompts, with the weights of the stage that is on.

        Args:
          step: the step whose batch is next.
        """
        while self.number < len(self._stages) and self._is_over(self._stages[self.number], step):
            self.number += 1
        return self._views[self.number]

    def _is_over(self, stage: Stage, step: int) -> bool:
        if stage.until_step is not None and step > stage.until_step:
            return True
        wanted = stage.until_pass_rate.items()
        return bool(wanted) and all(
            self._has_rate(name, rate, stage.min_prompts) for name, rate in wanted
        )

    def _has_rate(self, domain: str, least: float, min_prompts: int) -> bool:
        """True if the mean of the measured prompts of a domain is high enough; each counts once.

        The sampler decides how often a prompt is generated, so a mean over samples would say more
        about the sampler than about the policy.
        """
        places = self._places[domain]
        measured = places[self._rates.measured(places)]
        if not len(measured) or len(measured) < min(min_prompts, len(places)):
            return False
        return float(self._rates.mean(measured).mean()) >= least - _ROUNDING
