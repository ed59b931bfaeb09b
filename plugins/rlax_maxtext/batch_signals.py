"""The signals of a run of MaxText's trainer, with the model that they see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from rlax_maxtext.options import TrainerOptions
from rlax_plugin.api import (
    ARRAYS,
    BuildContext,
    ObjectiveSlots,
    RunFiles,
    SignalChain,
    chosen_signals,
    loss_weight,
    needed_signals,
    scale_names,
    whole_update,
)


def signals_of(
    context: BuildContext,
    slots: ObjectiveSlots,
    options: TrainerOptions,
    checkpoints: Callable[[], Collection[int]],
) -> SignalChain:
    """The chain of the signals that the objective needs, and of those that the config lists.

    Args:
      context: context of the trainer.
      options: options of the trainer; decide which kept weights are in host memory.
      checkpoints: see ``SignalChain``.
    """
    own: dict[str, dict[str, Any]] = {
        "reference": {"offload": options.offload_reference},
        "old_policy": {"offload": options.offload_old_policy},
    }
    needed = {name: own[name] for name in needed_signals(slots)}
    return SignalChain(
        chosen_signals(context, slots.advantages, needed),
        RunFiles(context.run_url),
        slots.advantages,
        checkpoints=checkpoints,
        epochs=context.section.objective.epochs,
    )


def of_update(terms: Mapping[str, Any], slots: ObjectiveSlots, passes: int) -> dict[str, Any]:
    """Further arguments of ``Events``: terms need the weight of all micro-batches of an update.

    Args:
      terms: see ``SignalChain``.
      passes: micro-batches of an update.
    """
    if not terms or passes == 1:
        return {}
    weight = partial(loss_weight, slots)
    return {
        "update": lambda arrays: whole_update(terms, arrays, weight),
        "update_arrays": dict.fromkeys(scale_names(terms), ARRAYS["rl_advantages"]),
    }
