"""The numbers of a config that change during a run."""

from __future__ import annotations

from rlax_plugin.build import Registry
from rlax_plugin.config import RlaxSection, Schedule, schedules_in


def schedules_of(registry: Registry, section: RlaxSection) -> dict[str, Schedule]:
    """Returns dotted key -> schedule of each such number.

    It may be in the config, in the preset of the objective, or an option of a part.
    """
    found = dict(schedules_in(section, "rlax"))
    found |= schedules_in(registry.algorithm(section), "rlax.objective")
    for use in registry.uses(section):
        found |= schedules_in(registry.options(use.kind, use.choice, use.key), use.key)
    return found
