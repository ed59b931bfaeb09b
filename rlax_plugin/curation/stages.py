"""Stages: weights of the domains that change during a run, whatever the sampler.

A sampler sees the prompts with other weights; it need not know why.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlax_plugin.config import Stage
from rlax_plugin.errors import ConfigError, alternatives
from rlax_plugin.pass_rates.domains import DomainRates
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.prompts.table import PromptTable
from rlax_plugin.types import Prompt

_KEY = "rlax.curation.stages"


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
      rates: pass rates of the run; call ``observed`` after each change.

    Attributes:
      number: number of completed stages; a completed stage never starts again.

    Raises:
      ConfigError: see ``check_stages``.
    """

    def __init__(
        self, stages: Sequence[Stage], prompts: Sequence[Prompt], rates: PassRateTable
    ) -> None:
        check_stages(stages, prompts)
        self._stages, self._views = stages, [prompts]
        self._domains: DomainRates | None = None
        self.number = 0
        if not stages:
            return
        assert isinstance(prompts, PromptTable) and prompts.domains is not None
        # One view per stage: samplers go on as long as they see the same.
        self._views = [*(prompts.weighted(stage.weights) for stage in stages), prompts]
        self._number_of = {name: i for i, name in enumerate(prompts.domains.names)}
        if any(stage.until_pass_rate for stage in stages):
            self._domains = DomainRates(rates, prompts.domains.of_n, len(prompts.domains.names))

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
        if not stage.until_pass_rate:
            return False
        assert self._domains is not None
        means = {
            name: self._domains.mean(self._number_of[name], stage.min_prompts)
            for name in stage.until_pass_rate
        }
        return all(
            mean is not None and mean >= stage.until_pass_rate[name] for name, mean in means.items()
        )

    def observed(self, index: int) -> None:
        """Takes note of a prompt whose pass rate has changed."""
        if self._domains is not None:
            self._domains.observed(index)

    def restore(self, number: int) -> None:
        """Goes back to a number, after the pass rates went back."""
        self.number = min(number, len(self._stages))
        if self._domains is not None:
            self._domains.recount()
