"""The signals of a run of MaxText's trainer, and its loss with what they add to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rlax_maxtext.options import TrainerOptions
from rlax_plugin.api import (
    ARRAYS,
    ArraySpec,
    BuildContext,
    ObjectiveSlots,
    RunFiles,
    SignalChain,
    chosen_signals,
    loss_weight,
    make_loss,
    needed_signals,
    scale_names,
    whole_update,
)

if TYPE_CHECKING:
    import numpy as np


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


@dataclass(frozen=True, slots=True)
class Training:
    """The objective of a run with its signals, as the train loop takes them.

    Attributes:
      parts: number of micro-batches of an update.
    """

    slots: ObjectiveSlots
    signals: SignalChain
    parts: int

    @property
    def _needs_whole(self) -> bool:
        """True if terms of the loss need what all micro-batches of an update weigh."""
        return bool(self.signals.terms) and self.parts > 1

    def update(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """See ``Events``."""
        if not self._needs_whole:
            return arrays
        return whole_update(self.signals.terms, arrays, partial(loss_weight, self.slots))

    @property
    def update_arrays(self) -> dict[str, ArraySpec]:
        """See ``Events``."""
        if not self._needs_whole:
            return {}
        return dict.fromkeys(scale_names(self.signals.terms), ARRAYS["rl_advantages"])

    @property
    def of_loop(self) -> dict[str, Any]:
        """Arguments of ``run_train_loop``."""
        terms = self.signals.terms
        return {
            "arrays": ARRAYS | self.signals.device_arrays,
            "objective": make_loss(self.slots, terms),
            "outputs": {name for term in terms.values() for name in term.outputs},
            "frozen_updates": self.signals.warm_up_steps * self.slots.updates_per_step,
        }
