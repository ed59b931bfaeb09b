"""Contract of presets: their slots exist and fit each other. The results are not checked."""

from __future__ import annotations

import numpy as np

from rlax_plugin.objective.loss import ObjectiveSlots, Preset
from rlax_plugin.testing.contracts.advantage import MIXED, outcomes
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.loss import batch, compiled
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.testing.objectives import section_of, slots_of

_FIT = (
    "fill aggregation, advantage and grad_1 with names that a loaded plug-in offers: "
    "check_plugin(..., plugins=(...,)) loads others"
)


def check_objective(trial: Trial, part: Inspection) -> None:
    """Checks a whole objective."""
    preset, name, section = trial.built(part), trial.choice.name, trial.context.section
    with part.rule("build returns an rlax_plugin.api.Preset", "see presets_from_yaml"):
        require(isinstance(preset, Preset), f"it returned {type(preset).__name__}")
    if not part.sound:
        return
    slots: ObjectiveSlots | None = None
    with part.rule("its slots are offered, and fit each other", _FIT):
        slots = slots_of(section_of(name, section.plugins, rollouts=section.rollouts))
    if slots is None:
        return
    with part.rule(
        "one update has finite advantages, a finite loss, and a gradient on trained tokens only",
        "see the advantage and the terms that it names",
    ):
        found = np.asarray(slots.advantages(outcomes(MIXED)))
        require(np.isfinite(found).all(), f"the advantages are {found}")
        of = batch()
        value = compiled(slots)(of)
        require(np.isfinite(value.loss_sum), f"the loss is {value.loss_sum}")
        require(np.isfinite(value.grad_bt).all(), "the gradient is not finite")
        require(not value.grad_bt[of.arrays["rl_mask"] == 0].any(), "padding has a gradient")
        require(value.grad_bt.any(), "no token has a gradient: nothing trains")
