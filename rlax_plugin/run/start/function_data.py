"""Checks a run's functions against the columns of its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlax_plugin.base.types import Prompt
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.of_run import AskedSet, RunPrompts
from rlax_plugin.data.prompts.row_columns import REFERENCES
from rlax_plugin.data.prompts.table import JoinedPrompts
from rlax_plugin.reward.functions.checking import check_columns


def check_data(section: RlaxSection, functions: Mapping[str, str], prompts: RunPrompts) -> None:
    """Checks that the prompts have the columns that functions need.

    Args:
      functions: see ``BuildContext``.

    Raises:
      ConfigError: a column is missing; lists those that there are.
    """
    for name, one in section.by_environment.items():
        train = (
            prompts.train.parts[name] if isinstance(prompts.train, JoinedPrompts) else prompts.train
        )
        _check(section, one, functions, train, section.key_of(name, "rewards"))
    if len(prompts.train):
        filters, key = section.curation.filters, "rlax.curation.filters"
        startup_s = section.deadlines.startup_s
        check_columns(
            filters, "filter", key, functions, prompts.train, _references(section), startup_s
        )
    for one in prompts.asked:
        own = f"rlax.evaluation.sets.{one.name}.rewards"
        key = own if _has_own(one) else section.key_of(one.environment, "rewards")
        _check(section, section.of_environment(one.environment), functions, one.prompts, key)


def _has_own(one: AskedSet) -> bool:
    return bool(one.chosen.rewards)


def _check(
    section: RlaxSection,
    own: RlaxSection,
    functions: Mapping[str, str],
    prompts: Sequence[Prompt],
    key: str,
) -> None:
    if len(prompts):
        choices, startup_s = section.function_lists[key], section.deadlines.startup_s
        check_columns(choices, "reward", key, functions, prompts, _references(own), startup_s)


def _references(section: RlaxSection) -> tuple[str, ...]:
    """Names of columns that may be the references; the configured one alone, if there is one."""
    configured = section.prompt_source.options.get("reference")
    return (str(configured),) if configured else REFERENCES
