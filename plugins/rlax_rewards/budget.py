"""Limits the CPU time that a reward may spend on one answer; slower answers are wrong."""

from __future__ import annotations

from pydantic import Field

from rlax_plugin.api import BuildContext, ConfigError, LimitedFunction, Seconds, Section

_CPU_S = 2.0
_SHARE = 5  # of reward_s: a busy machine and the other rewards of the sample need time as well
_LARGEST_SHARE = 2


class CpuBudget(Section):
    """Options of rewards in which an answer can cause long computations."""

    cpu_s: Seconds | None = Field(
        None,
        description="CPU time for one answer; an answer that takes more, or more than 1 GiB of "
        "memory, is wrong. At most half of rlax.deadlines.reward_s; null: a fifth of it, but at "
        f"most {_CPU_S:g} s",
    )

    def limited(self, function: str, context: BuildContext) -> LimitedFunction:
        """Returns the function, ``module:name``, running in a process that is being started."""
        deadlines = context.section.deadlines
        found = LimitedFunction(
            function,
            cpu_s=self.cpu_s or min(_CPU_S, deadlines.reward_s / _SHARE),
            wait_s=deadlines.reward_s,
            startup_s=deadlines.startup_s,
        )
        found.start()
        return found


def check_budget(config: CpuBudget, context: BuildContext, name: str) -> None:
    """Checks that the budget ends before the deadline of rewards.

    Args:
      config: options of the reward.
      context: the run.
      name: name of the reward.

    Raises:
      ConfigError: the deadline of all rewards may end the reward before the budget does.
    """
    most = context.section.deadlines.reward_s / _LARGEST_SHARE
    if config.cpu_s is not None and config.cpu_s > most:
        # The options alone do not say where they stand; others of this name may be listed.
        found = (
            number
            for number, choice in enumerate(context.section.rewards)
            if choice.plain_name == name and choice.options.get("cpu_s") == config.cpu_s
        )
        number = next(found, None)
        key = "rlax.rewards" if number is None else f"rlax.rewards.{number}"
        reason = (
            f"must be at most {most:g}, half of rlax.deadlines.reward_s: a sample that meets that "
            "deadline is unscored, and an answer that takes long should be wrong instead"
        )
        raise ConfigError(f"{key}.cpu_s", config.cpu_s, reason)
