"""The signals of a config: those that its objective needs, then those that it lists."""

from __future__ import annotations

from collections.abc import Collection

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.config import Choice
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.training.objective.advantages import AdvantageSlot, probe
from rlax_plugin.training.objective.loss import ObjectiveSlots
from rlax_plugin.training.signals.signal import ADVANTAGE_INPUTS, VALUES, BatchSignal

_KEY = "rlax.signals"


def needed_signals(slots: ObjectiveSlots) -> tuple[str, ...]:
    """Returns the names of the signals that an objective needs, in their order."""
    needs = {"reference": slots.needs_reference, "old_policy": slots.needs_old_logprobs}
    return tuple(name for name, needed in needs.items() if needed)


def chosen_signals(
    context: BuildContext, advantages: AdvantageSlot, needed: Collection[str] = ()
) -> dict[str, BatchSignal]:
    """Builds the signals of a run.

    Args:
      context: of the trainer.
      advantages: the slot of the objective.
      needed: names of signals that the run needs even if the config does not list them; see
        ``needed_signals``.

    Returns:
      name -> signal, in the order in which they run: the needed ones, then the others as listed.

    Raises:
      ConfigError: an unknown name or option, with its key; the config lists signals, none of them
        gives values, and the advantages need them; or it has a selection, and a signal changes
        advantages.
      PluginError: a plug-in built an object that is not a signal.
    """
    listed = {
        choice.plain_name: (f"{_KEY}.{index}", choice)
        for index, choice in enumerate(context.section.signals)
    }
    own = {name: (_KEY, Choice(name=name)) for name in needed}
    found: dict[str, BatchSignal] = {}
    selection = context.section.curation.selection
    for name, (key, choice) in (own | listed).items():
        signal = context.part("signal", choice, key)
        if not isinstance(signal, BatchSignal):
            raise PluginError(
                f"{key}: signal {choice.name!r} built {signal!r}, expected an instance of a "
                "subclass of rlax_plugin.api.BatchSignal"
            )
        if selection and (added := signal.arrays.keys() & ADVANTAGE_INPUTS.keys()):
            reason = (
                f"must be null with {key} = {choice.name!r}, which adds {min(added)}: advantages "
                "are then computed by the trainer, from all samples"
            )
            raise ConfigError("rlax.curation.selection", selection.name, reason)
        found[name] = signal
    if listed and not any(VALUES in signal.arrays for signal in found.values()):
        probe(advantages, context.section.rollouts.group_size)
    return found
