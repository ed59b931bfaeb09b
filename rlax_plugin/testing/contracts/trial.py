"""A part under test, and the small made-up run around it: the input of every contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlax_plugin.base.types import Canary, Prompt, WeightVersion
from rlax_plugin.build import Registry
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing import policy
from rlax_plugin.testing.builders import make_prompt, publish_version
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.fakes import CANARY_TOKENS

STEPS = 3  # of the run
_CANARY_TOLERANCE = 1e-4  # nats
_BUILD = "let build(config, context) return the part, and raise a ConfigError for bad options"


class Unbuilt(Exception):
    """The part could not be built, which is already recorded as a finding."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One part of a plug-in.

    Attributes:
      kind, choice: kind of the part, and its name and options.
      registry: parts of the plug-in and the toy parts.
      context: of a run with the plug-in's own parts, and the toy parts for the other kinds.
      lean: that run's config for another process, which needs no toy parts.
      make_context: the context of another run, with an empty directory.
      own_prompts: True if the prompt source of the run is the plug-in's.
      process_s: time limit of another process that builds the part.
    """

    kind: str
    choice: Choice
    registry: Registry
    context: BuildContext
    lean: RlaxSection
    make_context: Callable[[], BuildContext]
    own_prompts: bool
    process_s: float

    @property
    def run_dir(self) -> Path:
        """The run's directory, empty at first."""
        return self.context.run_dir

    def build(self) -> Any:
        """Builds a fresh part; lets exceptions of its plug-in pass."""
        return self.registry.part(self.kind, self.choice, self.kind, self.context)

    def built(self, part: Inspection) -> Any:
        """Builds a fresh part; a failure to build, or abilities that do not fit, are findings.

        Raises:
          Unbuilt: it cannot be built.
        """
        built = None
        with part.rule("can be built", _BUILD):
            built = self.build()
            require(built is not None, "build returned None")
        if built is None:
            raise Unbuilt
        part.look(built, BY_NAME[self.kind].base)
        return built

    def prompts(self) -> Sequence[Prompt]:
        """Two prompts that a reward can judge: the plug-in's own, if it has any."""
        if not self.own_prompts:
            return make_prompt("12+30=", "42"), make_prompt("7+8=", "15")
        choice = self.context.section.prompt_source
        source = self.registry.part("prompt_source", choice, "prompt_source", self.make_context())
        return source.prompts("train")[:2]

    def published(self) -> list[WeightVersion]:
        """Two versions of the toy policy."""
        choice = self.context.section.weights.store
        store = self.registry.part("weight_store", choice, "weight_store", self.context)
        versions = []
        for number in (0, 1):
            weights = policy.initial_weights(number)
            logprobs = policy.sequence_log_probs(weights, CANARY_TOKENS)
            canary = Canary(CANARY_TOKENS, logprobs, _CANARY_TOLERANCE)
            path = str(self.run_dir / f"weights-{number}")
            versions.append(publish_version(store, path, weights, version=number, canary=canary))
        return versions
