"""The kinds of parts: one entry each, which hooks, registry, commands and checks are built from.

``hookspecs`` makes the hook of each kind, ``build`` looks up a config's choices at its places,
``rlax explain`` explains it there, ``rlax check-plugin`` runs its contract, and ``rlax new-plugin``
writes one: a copy of the example of its hook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlax_plugin.ports.environment import Environment
from rlax_plugin.ports.observer import Observer
from rlax_plugin.ports.protocols import Launcher, PromptSource, RolloutEngine, WeightStore
from rlax_plugin.ports.training import Trainer

NAME = "NAME"  # stands for a name that the config chooses
_MANY = "[]"
_SLOTS = "objective."
_TRAINER = "the trainer"
_CONTROLLER = "the trainer, for the controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of part.

    Attributes:
      name: name of the kind.
      part: type of the part: a name in ``rlax_plugin.api``, or a function's arguments and result.
      process: the processes in which it is built.
      places: config keys below ``rlax`` that choose such a part; a key that ends in ``[]`` holds a
        list.
      contract: the module of ``rlax_plugin.testing.contracts`` that has ``check_<name>``.
      toy: the part that replaces it when an author tries parts of other kinds; empty if no
        replacement is needed.
      base: the class that such a part must derive from; object: any.
    """

    name: str
    part: str
    process: str
    places: tuple[str, ...]
    contract: str
    toy: str = ""
    base: type = object

    @property
    def hook(self) -> str:
        """The name of the hook that registers such parts."""
        return f"rlax_register_{self.name}"

    @property
    def fills_slot(self) -> bool:
        """True if it is a part of the objective, which a preset may choose as well."""
        return self.name != "objective" and self.places[0].startswith(_SLOTS)

    @property
    def config_keys(self) -> tuple[str, ...]:
        """The places as dotted keys, without the ``[]`` of lists."""
        return tuple(f"rlax.{place.removesuffix(_MANY)}" for place in self.places)

    def usage(self, name: str) -> str:
        """One line of a section ``rlax:`` that chooses the part ``name``."""
        place = self.places[0]
        *sections, key = place.removesuffix(_MANY).split(".")
        value = name if key == "preset" else f"{{name: {name}}}"
        line = f"{key}: [{value}]" if place.endswith(_MANY) else f"{key}: {value}"
        if self.fills_slot:
            line = f"preset: grpo, {line}"
        for section in reversed(sections):
            line = f"{section}: {{{line}}}"
        return line


def choose(content: dict[str, Any], place: str, choice: Any) -> None:
    """Puts a choice at a kind's place into the content of a section ``rlax:``."""
    *sections, key = place.removesuffix(_MANY).split(".")
    for section in sections:
        content = content.setdefault(section, {})
    content[key] = [choice] if place.endswith(_MANY) else choice


# In the order in which a config is looked at.
ALL = (
    Kind(
        name="prompt_source",
        part="PromptSource",
        process="the trainer, and workers that serve text",
        places=(
            "prompt_source",
            f"environments.{NAME}.prompt_source",
            f"evaluation.sets.{NAME}.prompt_source",
        ),
        contract="task",
        toy="numbers",
        base=PromptSource,
    ),
    Kind(
        name="reward",
        part="Reward",
        process="the reward processes, without JAX",
        places=("rewards[]", f"environments.{NAME}.rewards[]", f"evaluation.sets.{NAME}.rewards[]"),
        contract="task",
        toy="even",
    ),
    Kind(
        name="environment",
        part="Environment",
        process="the trainer, for its first question, and the reward processes, without JAX",
        places=("environment", f"environments.{NAME}.environment"),
        contract="environment",
        toy="single_turn",
        base=Environment,
    ),
    Kind(
        name="rollout_engine",
        part="RolloutEngine",
        process="workers",
        places=("rollouts.engine",),
        contract="engine",
        toy="scripted",
        base=RolloutEngine,
    ),
    Kind(
        name="sampler",
        part="Sampler",
        process=_CONTROLLER,
        places=("curation.sampler",),
        contract="curation",
        toy="shuffled",
    ),
    Kind(
        name="filter",
        part="Filter",
        process=_CONTROLLER,
        places=("curation.filters[]",),
        contract="curation",
    ),
    Kind(
        name="selection",
        part="Selection",
        process=_CONTROLLER,
        places=("curation.selection",),
        contract="curation",
    ),
    Kind(
        name="objective",
        part="Preset",
        process="the trainer, and wherever an objective is explained",
        places=("objective.preset",),
        contract="slots",
    ),
    Kind(
        name="aggregation",
        part="TokenInputs -> weight of every token, and their total",
        process=_TRAINER,
        places=("objective.aggregation", "objective.kl.aggregation"),
        contract="slots",
    ),
    Kind(
        name="importance_weight",
        part="TokenInputs -> weight of every token, without gradient",
        process=_TRAINER,
        places=("objective.importance_weight",),
        contract="slots",
    ),
    Kind(
        name="advantage",
        part="Outcomes -> advantages of a batch, in numpy",
        process=_TRAINER,
        places=("objective.advantage", f"environments.{NAME}.objective.advantage"),
        contract="advantage",
    ),
    Kind(
        name="gradient_term",
        part="TokenInputs -> term of every token, with gradient",
        process=_TRAINER,
        places=("objective.grad_1", "objective.grad_2"),
        contract="slots",
    ),
    Kind(
        name="correction",
        part="TokenInputs -> factor of every token, without gradient",
        process=_TRAINER,
        places=("objective.corrections[]",),
        contract="slots",
    ),
    Kind(
        name="weight_store",
        part="WeightStore",
        process="the trainer, workers and parameter servers",
        places=("weights.store",),
        contract="store",
        base=WeightStore,
        toy="npz",
    ),
    Kind(
        name="launcher",
        part="Launcher",
        process=_CONTROLLER,
        places=("launcher",),
        contract="launcher",
        base=Launcher,
    ),
    Kind(
        name="tracker",
        part="Tracker",
        process=_CONTROLLER,
        places=("trackers[]",),
        contract="tracker",
    ),
    Kind(
        name="observer",
        part="Observer",
        process=_CONTROLLER,
        places=("observers[]",),
        contract="observers",
        base=Observer,
    ),
    Kind(
        name="trainer",
        part="Trainer",
        process="the trainer, before the controller starts",
        places=("trainer",),
        contract="trainer",
        toy="bigram",
        base=Trainer,
    ),
    Kind(
        name="signal",
        part="BatchSignal",
        process=_TRAINER,
        places=("signals[]",),
        contract="signal",
    ),
)
BY_NAME = {kind.name: kind for kind in ALL}
AT_KEY = {key: kind for kind in ALL for key in kind.config_keys}
