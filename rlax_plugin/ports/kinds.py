"""The kinds of parts: one entry each, from which the registry, commands and checks derive the rest.

A kind also has a hook of its name in ``hookspecs``, and an interface in ``protocols``.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = "NAME"  # stands for a name that the config chooses
_MANY = "[]"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of part.

    Attributes:
      name: of its hook, ``rlax_register_<name>``.
      places: where a config chooses such a part: keys below ``rlax``; one that ends in ``[]`` holds
        a list.
      toy: the part that stands in for it where an author tries parts of other kinds; empty where
        none is needed.
    """

    name: str
    places: tuple[str, ...]
    toy: str = ""

    @property
    def config_keys(self) -> tuple[str, ...]:
        """The places as dotted keys, without the marks of lists."""
        return tuple(f"rlax.{place.removesuffix(_MANY)}" for place in self.places)

    def usage(self, name: str) -> str:
        """What a section ``rlax:`` says to choose the part ``name``, on one line."""
        place = self.places[0]
        *sections, key = place.removesuffix(_MANY).split(".")
        value = name if key == "preset" else f"{{name: {name}}}"
        line = f"{key}: [{value}]" if place.endswith(_MANY) else f"{key}: {value}"
        if sections == ["objective"] and key != "preset":
            line = f"preset: grpo, {line}"
        for section in reversed(sections):
            line = f"{section}: {{{line}}}"
        return line


# In the order in which a config is looked at.
ALL = (
    Kind("prompt_source", ("prompt_source", f"evaluation.sets.{NAME}.prompt_source"), "numbers"),
    Kind("reward", ("rewards[]", f"evaluation.sets.{NAME}.rewards[]"), "even"),
    Kind("rollout_engine", ("rollouts.engine",), "scripted"),
    Kind("sampler", ("curation.sampler",), "shuffled"),
    Kind("filter", ("curation.filters[]",)),
    Kind("objective", ("objective.preset",)),
    Kind("aggregation", ("objective.aggregation",)),
    Kind("importance_weight", ("objective.importance_weight",)),
    Kind("advantage", ("objective.advantage",)),
    Kind("gradient_term", ("objective.grad_1", "objective.grad_2")),
    Kind("correction", ("objective.corrections[]",)),
    Kind("weight_store", ("weights.store",), "npz"),
    Kind("launcher", ("launcher",)),
    Kind("tracker", ("trackers[]",)),
    Kind("trainer", ("trainer",), "bigram"),
)
BY_NAME = {kind.name: kind for kind in ALL}
