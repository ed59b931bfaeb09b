"""Looks at a config, part by part, and keeps what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlax_plugin.build import Registry
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.controller.preflight import check_places, check_start
from rlax_plugin.evaluation.problems import Part, asked_sets
from rlax_plugin.objective.loss import ObjectiveSlots
from rlax_plugin.ports.protocols import BuildContext, CheckResult, PromptSource
from rlax_plugin.rollouts.requests import training_prompts


@dataclass(frozen=True, slots=True)
class Prompts:
    """The sizes of a prompt dataset.

    Attributes:
      train: training prompts.
      longest: tokens of the longest of them.
      held_out: prompts of ``rlax.evaluation``'s split that are used; 0 without evaluation.
    """

    train: int
    longest: int
    held_out: int

    @classmethod
    def of(cls, source: PromptSource, section: RlaxSection, part: Part) -> Prompts:
        """Reads the prompts, also those of every evaluation set.

        Args:
          source: of training.
          part: builds those of other sets.

        Raises:
          ConfigError: there are none, or one is longer than the config allows.
        """
        train, asked = training_prompts(section, source), asked_sets(section, source, part)
        longest = max(len(prompt.tokens) for prompt in train)
        return cls(len(train), longest, len(asked[0].prompts) if asked else 0)


@dataclass(frozen=True, slots=True)
class Examined:
    """A checked config, and what was found out about it.

    Attributes:
      config: as it was resolved.
      registry: of its plug-ins.
      slots: of its objective.
      checked: key of a part -> the result of its own check; None: the parts' checks did not run.
      prompts: None: they were not read.
    """

    config: ResolvedConfig
    registry: Registry
    slots: ObjectiveSlots
    checked: Mapping[str, CheckResult] | None = None
    prompts: Prompts | None = None

    @property
    def section(self) -> RlaxSection:
        """``rlax:``."""
        return self.config.section

    @property
    def maxtext(self) -> Mapping[str, Any]:
        """MaxText's keys as far as files and arguments set them."""
        return self.config.maxtext

    @property
    def rl_steps(self) -> int | None:
        """RL steps of the run; None where ``steps`` is not given."""
        steps = self.maxtext.get("steps")
        return steps // self.section.objective.updates_per_step if isinstance(steps, int) else None

    @property
    def workers(self) -> int | None:
        """Worker processes that the launcher starts; None where it does not say."""
        return self.registry.workers(self.section)

    @property
    def samples(self) -> int:
        """Samples of one RL step."""
        return self.section.rollouts.groups_per_step * self.section.rollouts.group_size

    @property
    def groups(self) -> int | None:
        """Groups of the whole run."""
        steps = self.rl_steps
        return None if steps is None else steps * self.section.rollouts.groups_per_step


def examine(config: ResolvedConfig, registry: Registry) -> Examined:
    """Checks the section, its plug-ins and local places; builds nothing but the objective.

    Raises:
      ConfigError, PluginError, TrainingError: what is wrong with it.
    """
    slots = check_start(config, registry, remote=False)
    return Examined(config, registry, slots)


def examine_parts(config: Examined) -> Examined:
    """Runs the parts' own checks, and reads the prompts.

    Raises:
      RlaxError: a check failed.
    """
    section, registry = config.section, config.registry
    check_places(section, config.maxtext)
    context = BuildContext.outside_run(section, config.config)
    checked = registry.check(section, context)

    def part(kind: str, choice: Choice, key: str) -> Any:
        return registry.part(kind, choice, key, context)

    source = part("prompt_source", section.prompt_source, "rlax.prompt_source")
    return replace(config, checked=checked, prompts=Prompts.of(source, section, part))
