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


@dataclass(frozen=True, slots=True)
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
        "prompt_source",
        "PromptSource",
        "the trainer, and workers that serve text",
        ("prompt_source", f"evaluation.sets.{NAME}.prompt_source"),
        "task",
        toy="numbers",
        base=PromptSource,
    ),
    Kind(
        "reward",
        "Reward",
        "the reward processes, without JAX",
        ("rewards[]", f"evaluation.sets.{NAME}.rewards[]"),
        "task",
        toy="even",
    ),
    Kind(
        "environment",
        "Environment",
        "the trainer, for its first question, and the reward processes, without JAX",
        ("environment",),
        "environment",
        toy="single_turn",
        base=Environment,
    ),
    Kind(
        "rollout_engine",
        "RolloutEngine",
        "workers",
        ("rollouts.engine",),
        "engine",
        toy="scripted",
        base=RolloutEngine,
    ),
    Kind("sampler", "Sampler", _CONTROLLER, ("curation.sampler",), "curation", toy="shuffled"),
    Kind("filter", "Filter", _CONTROLLER, ("curation.filters[]",), "curation"),
    Kind(
        "objective",
        "Preset",
        "the trainer, and wherever an objective is explained",
        ("objective.preset",),
        "slots",
    ),
    Kind(
        "aggregation",
        "TokenInputs -> weight of every token, and their total",
        _TRAINER,
        ("objective.aggregation", "objective.kl.aggregation"),
        "slots",
    ),
    Kind(
        "importance_weight",
        "TokenInputs -> weight of every token, without gradient",
        _TRAINER,
        ("objective.importance_weight",),
        "slots",
    ),
    Kind(
        "advantage",
        "Outcomes -> advantages of a batch, in numpy",
        _TRAINER,
        ("objective.advantage",),
        "advantage",
    ),
    Kind(
        "gradient_term",
        "TokenInputs -> term of every token, with gradient",
        _TRAINER,
        ("objective.grad_1", "objective.grad_2"),
        "slots",
    ),
    Kind(
        "correction",
        "TokenInputs -> factor of every token, without gradient",
        _TRAINER,
        ("objective.corrections[]",),
        "slots",
    ),
    Kind(
        "weight_store",
        "WeightStore",
        "the trainer, workers and parameter servers",
        ("weights.store",),
        "store",
        base=WeightStore,
        toy="npz",
    ),
    Kind("launcher", "Launcher", _CONTROLLER, ("launcher",), "launcher", base=Launcher),
    Kind("tracker", "Tracker", _CONTROLLER, ("trackers[]",), "tracker"),
    Kind("observer", "Observer", _CONTROLLER, ("observers[]",), "observers", base=Observer),
    Kind(
        "trainer",
        "Trainer",
        "the trainer, before the controller starts",
        ("trainer",),
        "trainer",
        toy="bigram",
        base=Trainer,
    ),
    Kind("signal", "BatchSignal", _TRAINER, ("signals[]",), "signal"),
)
BY_NAME = {kind.name: kind for kind in ALL}
AT_KEY = {key: kind for kind in ALL for key in kind.config_keys}
