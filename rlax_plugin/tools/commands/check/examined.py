"""Examines a config, part by part, and keeps the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlax_plugin.build import Registry
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.data.curation.stages import check_stages
from rlax_plugin.data.prompts.checking import longest_prompt
from rlax_plugin.data.prompts.of_run import Part, RunPrompts
from rlax_plugin.ports.protocols import BuildContext, CheckResult
from rlax_plugin.reward.process import form_of, needs_of
from rlax_plugin.rollout.episodes.runner import check_environment
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.controller.guidance import check_answers
from rlax_plugin.run.controller.screening import check_rewards
from rlax_plugin.run.start.function_data import check_data
from rlax_plugin.run.start.preflight import check_places, check_start
from rlax_plugin.run.state.logged_samples import read_logged
from rlax_plugin.training.objective.loss import ObjectiveSlots


@dataclass(frozen=True, slots=True)
class Prompts:
    """The sizes of a prompt dataset.

    Attributes:
      train: training prompts.
      longest: tokens of the longest training prompt.
      held_out: prompts of ``rlax.evaluation``'s split that are used; 0 without evaluation.
      notes: sentences on prompts that are left out.
    """

    train: int
    longest: int
    held_out: int
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        section: RlaxSection,
        part: Part,
        functions: Mapping[str, str],
        slots: ObjectiveSlots,
        maxtext: Mapping[str, Any],
    ) -> Prompts:
        """Reads the prompts, also those of every evaluation set, and logged samples.

        Args:
          slots, maxtext: see ``read_logged``.
          part: builds a part of the config.
          functions: see ``BuildContext``; the prompts must have their columns.

        Raises:
          RlaxError: there are no prompts, they cannot be read, or one is longer than allowed.
        """
        notes: list[str] = []
        trains = not section.trains_on_log
        found = RunPrompts.read(section, part, trains=trains, note=notes.append)
        check_stages(section.curation.stages, found.train)
        check_data(section, functions, found)
        check_answers(section, found.source)
        if not trains:
            logged = read_logged(section, found.source, slots, maxtext)
            notes.append(logged.note)
            found = replace(found, train=logged.prompts)
        held_out = len(found.asked[0].prompts) if found.asked else 0
        return cls(len(found.train), longest_prompt(found.train), held_out, tuple(notes))


@dataclass(frozen=True, slots=True)
class Examined:
    """A checked config with the findings about it.

    Attributes:
      config: the resolved config.
      registry: registry of its plug-ins.
      slots: slots of its objective.
      checked: key of a part -> the result of its own check; None: the parts' checks did not run.
      prompts: sizes of its prompts; None: they were not read.
      warnings: those of the parts about a start: (config key, one sentence).
    """

    config: ResolvedConfig
    registry: Registry
    slots: ObjectiveSlots
    checked: Mapping[str, CheckResult] | None = None
    prompts: Prompts | None = None
    warnings: Sequence[tuple[str, str]] = ()

    @property
    def section(self) -> RlaxSection:
        """The section ``rlax:``."""
        return self.config.section

    @property
    def maxtext(self) -> Mapping[str, Any]:
        """MaxText's keys as far as files and arguments set them."""
        return self.config.maxtext

    @property
    def rl_steps(self) -> int | None:
        """RL steps of the run; None if ``steps`` is not set."""
        steps = self.maxtext.get("steps")
        return steps // self.section.objective.updates_per_step if isinstance(steps, int) else None

    @property
    def workers(self) -> int | None:
        """Number of worker processes that the launcher starts; None if it does not say."""
        return self.registry.workers(self.section)

    @property
    def samples(self) -> int:
        """Number of samples of one RL step."""
        return self.section.rollouts.groups_per_step * self.section.rollouts.group_size

    @property
    def sampled_tokens(self) -> int:
        """Maximum number of tokens that the policy samples for one RL step."""
        most = 0
        for section in self.section.by_environment.values():
            one = section.rollouts.max_new_tokens
            if section.several_turns:
                room = section.episode_tokens * section.episode_trajectories
                one = min(section.episodes.max_turns * one, room)
            most = max(most, one)
        return self.samples * most

    @property
    def groups(self) -> int | None:
        """Number of groups of the whole run."""
        steps = self.rl_steps
        return None if steps is None else steps * self.section.rollouts.groups_per_step


def examine(config: ResolvedConfig, registry: Registry) -> Examined:
    """Checks the section, its plug-ins and local places; builds nothing but the objective.

    Raises:
      ConfigError, PluginError, TrainingError: the config is wrong.
    """
    slots, warnings = check_start(config, registry, remote=False)
    return Examined(config, registry, slots, warnings=warnings)


def examine_parts(config: Examined, progress: Callable[[str, int], None]) -> Examined:
    """Runs the parts' own checks, builds the environment, and reads the prompts.

    Rewards are built only if groups are screened, to find out which samples they compare, and the
    trainer only if the config asks for something that not every trainer does.

    Args:
      progress: see ``BuildContext``.

    Raises:
      RlaxError: a check failed.
    """
    section, registry = config.section, config.registry
    check_places(section, config.maxtext)
    context = replace(BuildContext.outside_run(section, config.config), progress=progress)
    checked = registry.check(section, context)
    asks = section.signals or section.batches.shared_prompts or section.weights.dtype != "model"
    if asks and config.rl_steps is not None:  # without them rlax train builds no trainer
        Builder(registry, context).trainer()

    def part(kind: str, choice: Choice, key: str) -> Any:
        return registry.part(kind, choice, key, context)

    builder = Builder(registry, context)
    for name, environment in builder.environments().items():
        with section.keys_of(name):
            check_environment(section.of_environment(name), environment)
    guided = section.objective.guidance is not None
    if guided or section.curation.screening.pilots:
        for name, one in section.by_environment.items():
            own = section.key_of(name, "rewards")
            keys = ((choice, f"{own}.{i}") for i, choice in enumerate(one.rewards))
            its_part = builder.of_environment(name).part
            forms = [form_of(its_part("reward", choice, key)) for choice, key in keys]
            check_rewards(section, needs_of(forms))
    prompts = Prompts.of(section, part, context.functions, config.slots, config.maxtext)
    return replace(config, checked=checked, prompts=prompts)
