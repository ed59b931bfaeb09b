"""The parts that a config chooses, called so that their errors name plug-in and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.types import Prompt, ScoredGroup, TrainBatch
from rlax_plugin.build import Registry, registry_for
from rlax_plugin.config import FUNCTION, Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.curation import Filter, PassRates, Sampler, Selection
from rlax_plugin.ports.environment import Environment
from rlax_plugin.ports.manager import told
from rlax_plugin.ports.protocols import BuildContext, WeightStore
from rlax_plugin.ports.training import Trainer
from rlax_plugin.reward.functions.calling import ReturnedError
from rlax_plugin.reward.functions.signatures import own_line
from rlax_plugin.training.objective.batches import repeats_problem


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the parts that one config chooses, for one command."""

    registry: Registry
    context: BuildContext

    @classmethod
    def of(cls, config: ResolvedConfig, run_dir: Path, **more: Any) -> Builder:
        """Returns a builder for a process that owns a directory.

        Args:
          more: further fields of ``BuildContext``.

        Raises:
          PluginError: see ``registry_for``.
        """
        section = config.section
        context = BuildContext(
            run_dir, section.seed, section, config, functions=config.functions, **more
        )
        return cls(registry_for(section), context)

    @property
    def section(self) -> RlaxSection:
        return self.context.section

    def part(self, kind: str, choice: Choice, key: str) -> Any:
        """Returns the built part, see ``Registry.part``."""
        return self.registry.part(kind, choice, key, self.context)

    def check_functions(self) -> None:
        """Checks the functions that are rewards.

        Raises:
          ConfigError: one cannot be used.
        """
        for key, choices in self.section.function_lists.items():
            for number, choice in enumerate(choices):
                if choice.function and key.endswith("rewards"):
                    self.registry.check_part("reward", choice, f"{key}.{number}", self.context)

    def trainer(self) -> Trainer:
        """Returns the trainer.

        Raises:
          ConfigError: the config lists signals, and the trainer would ignore them; or samples
            share their prompts, and its model cannot read such rows; or published weights are
            rounded, and the trainer cannot.
        """
        choice = self.section.trainer
        trainer: Trainer = self.part("trainer", choice, "rlax.trainer")
        if self.section.signals and not trainer.takes_signals:
            raise ConfigError(
                "rlax.signals",
                [signal.name for signal in self.section.signals],
                f"would be ignored by rlax.trainer.name {choice.name!r}, whose trainer does not "
                "declare takes_signals: leave it out, or choose a trainer that takes signals",
            )
        if self.section.batches.shared_prompts and not trainer.takes_shared_prompts:
            raise ConfigError(
                "rlax.batches.shared_prompts",
                True,
                f"must be false with rlax.trainer.name {choice.name!r}, whose trainer does not "
                "declare takes_shared_prompts",
            )
        if (dtype := self.section.weights.dtype) != "model" and not trainer.rounds_weights:
            raise ConfigError(
                "rlax.weights.dtype",
                dtype,
                f"must be model with rlax.trainer.name {choice.name!r}, whose trainer does not "
                "declare rounds_weights",
            )
        return trainer

    def weight_store(self) -> WeightStore:
        return self.part("weight_store", self.section.weights.store, "rlax.weights.store")

    def environments(self) -> dict[str, Environment]:
        """Returns name -> environment; "" if there is one."""
        built: dict[str, Environment] = {}
        for name, one in self.section.by_environment.items():
            key = self.section.key_of(name, "environment")
            with self.section.keys_of(name):
                built[name] = self.of_environment(name).part("environment", one.environment, key)
        return built

    def of_environment(self, name: str) -> Builder:
        """Returns a builder for a run with this environment alone; "": itself."""
        return replace(
            self, context=replace(self.context, section=self.section.of_environment(name))
        )


@dataclass(frozen=True, slots=True)
class Chosen[Part]:
    """A part of the config.

    Attributes:
      key: config key of the choice, such as ``rlax.observers.0``.
      name: the part's name in the config.
      plugin: the plug-in that offers it.
      part: the built part.
    """

    key: str
    name: str
    plugin: str
    part: Part

    @classmethod
    def build(cls, builder: Builder, kind: str, choice: Choice, key: str) -> Chosen[Any]:
        """Builds the part that the config chooses.

        Raises:
          ConfigError: see ``Registry.part``.
        """
        plugin = builder.registry.offer(kind, choice.part, key).plugin
        return Chosen(key, choice.name, plugin, builder.part(kind, choice, key))

    def call[**P, T](self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a method of the part.

        Raises:
          PluginError: it raised; names plug-in and part, and has its exception as cause.
        """
        try:
            return method(*args, **kwargs)
        except ReturnedError as error:
            raise PluginError(f"{self.key} = {self.name!r}: {error}") from error
        except Exception as error:
            where = (
                f" ({line[0]}, line {line[1]}, in {line[2]})" if (line := own_line(error)) else ""
            )
            raise self.error(f"failed in {method.__name__}: {told(error)}{where}") from error

    def error(self, what: str) -> PluginError:
        """Returns an error that names plug-in and part."""
        if self.plugin == FUNCTION:
            return PluginError(f"{self.key} = {self.name!r}: the function {what}")
        return PluginError(f"plug-in {self.plugin!r}: {self.key} = {self.name!r} {what}")


@dataclass(frozen=True, slots=True)
class ChosenFilter:
    """A filter whose failures are ``PluginError``."""

    chosen: Chosen[Filter]

    def reject(self, group: ScoredGroup) -> str | None:
        reason: Any = self.chosen.call(self.chosen.part.reject, group)
        if reason is not None and not isinstance(reason, str):
            raise self.chosen.error(
                f"returned {reason!r} from reject: must be None, or the reason in one short phrase"
            )
        return reason


@dataclass(frozen=True, slots=True)
class ChosenSampler:
    """A sampler whose failures are ``PluginError``."""

    chosen: Chosen[Sampler]

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        return self.chosen.call(self.chosen.part.choose, prompts, rates, rng, count)

    def state(self) -> dict[str, Any]:
        return self.chosen.call(self.chosen.part.state)

    def restore(self, state: dict[str, Any]) -> None:
        self.chosen.call(self.chosen.part.restore, state)


@dataclass(frozen=True, slots=True)
class ChosenSelection:
    """A selection whose failures are ``PluginError``.

    Attributes:
      rows: rows of a batch for each of its groups.
      seed: that of the run.
    """

    chosen: Chosen[Selection]
    rows: int
    seed: int

    def selected(self, batch: TrainBatch) -> TrainBatch:
        """Returns the batch with the repeats of its episodes."""
        rng = np.random.default_rng([self.seed, 2, batch.step])
        count = self.rows * len(batch.groups)
        repeats = self.chosen.call(self.chosen.part.repeats, batch, count, rng)
        if problem := repeats_problem(batch.groups, repeats, count):
            raise self.chosen.error(f"returned from repeats {problem}")
        return replace(batch, repeats=tuple(one.astype(np.int32) for one in repeats))
