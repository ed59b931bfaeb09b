"""Parts that a config chooses, called so that whatever they raise names plug-in and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.build import Registry
from rlax_plugin.config import Choice
from rlax_plugin.errors import PluginError
from rlax_plugin.ports.curation import Filter, PassRates, Sampler
from rlax_plugin.ports.manager import told
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.types import Prompt, ScoredGroup


@dataclass(frozen=True, slots=True)
class Chosen[Part]:
    """A part of the config.

    Attributes:
      key: where the config chooses it, such as ``rlax.observers.0``.
      name: what it chooses there.
      plugin: that offers it.
      part: as it was built.
    """

    key: str
    name: str
    plugin: str
    part: Part

    @classmethod
    def build(
        cls, registry: Registry, kind: str, choice: Choice, key: str, context: BuildContext
    ) -> Chosen[Any]:
        """Builds what the config chooses.

        Raises:
          ConfigError: see ``Registry.part``.
        """
        plugin = registry.offer(kind, choice.name, key).plugin
        return Chosen(key, choice.name, plugin, registry.part(kind, choice, key, context))

    def call[**P, T](self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a method of the part.

        Raises:
          PluginError: it raised; names plug-in and part, and has its exception as cause.
        """
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise self.error(f"failed in {method.__name__}: {told(error)}") from error

    def error(self, what: str) -> PluginError:
        """An error that names plug-in and part."""
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
