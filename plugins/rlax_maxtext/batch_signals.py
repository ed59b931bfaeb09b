"""The signals of a run of MaxText's trainer, and its loss with what they add to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rlax_maxtext.mixing import TERM, tempers, term
from rlax_maxtext.options import MixedDemonstrations
from rlax_plugin.api import (
    ARRAYS,
    DEMONSTRATED,
    TEMPERATURE,
    UPDATE_ARRAYS,
    ArraySpec,
    BuildContext,
    ObjectiveSlots,
    RlaxSection,
    RunFiles,
    SignalChain,
    Terms,
    check_weight_is_known,
    chosen_signals,
    device_arrays,
    loss_weight,
    make_loss,
    needed_signals,
    own_terms,
    scale_names,
    update_sums,
    whole_update,
)

if TYPE_CHECKING:
    import numpy as np


def signals_of(
    context: BuildContext,
    slots: ObjectiveSlots,
    checkpoints: Callable[[], Collection[int]],
) -> SignalChain:
    """The chain of the signals that the objective needs, and of those that the config lists.

    Args:
      context: context of the trainer.
      checkpoints: see ``SignalChain``.
    """
    return SignalChain(
        chosen_signals(context, slots.advantages, needed_signals(slots)),
        RunFiles(context.run_url),
        slots.advantages,
        checkpoints=checkpoints,
        epochs=context.section.objective.epochs,
    )


@dataclass(frozen=True, slots=True)
class Training:
    """The objective of a run with its signals, as the train loop takes them.

    Attributes:
      section: the config.
      parts: number of micro-batches of an update.
      mixed: the demonstrations beside RL.

    Raises:
      ConfigError: see ``check_weight_is_known``.
    """

    section: RlaxSection
    slots: ObjectiveSlots
    signals: SignalChain
    parts: int
    mixed: MixedDemonstrations

    def __post_init__(self) -> None:
        if self._needs_whole:
            check_weight_is_known(self.slots)

    @property
    def _terms(self) -> Terms:
        """The terms of the loss beside the objective's sum."""
        return own_terms(self.slots) | self._added_terms

    @property
    def _added_terms(self) -> Terms:
        mixed = {TERM: term(self.mixed)} if self.mixed.added_rows else {}
        return dict(self.signals.terms) | mixed

    @property
    def _mixed_arrays(self) -> dict[str, ArraySpec]:
        if not self.mixed.added_rows:
            return {}
        found = {DEMONSTRATED: ARRAYS["rl_mask"]}
        if tempers(self.section.rollouts.only_temperature):
            found[TEMPERATURE] = ARRAYS["rl_advantages"]
        return found

    @property
    def _needs_whole(self) -> bool:
        """True if terms of the loss need what all micro-batches of an update weigh."""
        return bool(self._terms) and self.parts > 1

    def update(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """See ``Events``."""
        found = dict(arrays) | update_sums(arrays)
        if not self._needs_whole:
            return found
        return whole_update(self._terms, found, partial(loss_weight, self.slots))

    @property
    def update_arrays(self) -> dict[str, ArraySpec]:
        """See ``Events``."""
        names = scale_names(self._terms) if self._needs_whole else ()
        return UPDATE_ARRAYS | dict.fromkeys(names, ARRAYS["rl_advantages"])

    @property
    def of_loop(self) -> dict[str, Any]:
        """Arguments of ``run_train_loop``."""
        terms = self._added_terms
        return {
            "arrays": device_arrays(self.section) | self.signals.device_arrays | self._mixed_arrays,
            "objective": make_loss(self.slots, terms),
            "outputs": {name for term in terms.values() for name in term.outputs},
            "frozen_updates": self.signals.warm_up_steps * self.slots.updates_per_step,
        }
