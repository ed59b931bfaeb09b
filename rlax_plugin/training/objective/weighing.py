"""The factors of every token's term: agg * is * corrections, and which tokens the slots see.

Suffix ``_bt``: [rows, length].
"""

from __future__ import annotations

from typing import Any

from rlax_plugin.base.errors import PluginError
from rlax_plugin.training.objective.inputs import KeptCounter, Rejection, TokenInputs
from rlax_plugin.training.objective.slots import ObjectiveSlots


def term_weights(slots: ObjectiveSlots, inputs: TokenInputs) -> tuple[Any, Any]:
    """Returns agg * is * corrections per token, [rows, length], and the total weight of ``agg``."""
    seen = seen_inputs(slots, inputs)
    weights_bt, weight = aggregated(slots, seen)
    return with_factors(weights_bt, slots, inputs, seen), weight


def counts_kept(aggregation: object) -> bool:
    """True if an aggregation counts tokens that a correction rejects as if they did not train."""
    return isinstance(aggregation, KeptCounter) and aggregation.counts_kept


def seen_inputs(slots: ObjectiveSlots, inputs: TokenInputs) -> TokenInputs:
    """Returns the inputs of all slots but the corrections.

    They are the same ones, or with ``counts_kept`` those of the tokens that no correction rejects.
    """
    if not counts_kept(slots.aggregation):
        return inputs
    frozen, kept_bt = inputs.frozen(), inputs.mask_bt > 0
    for correction in slots.corrections:
        if _rejects(correction):
            kept_bt &= correction(frozen) > 0
    return inputs.only(kept_bt)


def _rejects(correction: object) -> bool:
    return isinstance(correction, Rejection) and correction.rejects


def aggregated(slots: ObjectiveSlots, seen: TokenInputs) -> tuple[Any, Any]:
    """Returns agg per token, and its total weight."""
    weights_bt, weight = slots.aggregation(seen)
    check_shape("aggregation", weights_bt, seen)
    return weights_bt, weight


def with_factors(
    weights_bt: Any, slots: ObjectiveSlots, inputs: TokenInputs, seen: TokenInputs
) -> Any:
    """Returns weights * is * corrections per token.

    Args:
      weights_bt: of an aggregation.
      slots: the importance weight and the corrections.
      inputs: of the corrections.
      seen: of the importance weight, see ``seen_inputs``.
    """
    factor_bt = slots.importance_weight(seen)
    check_shape("importance_weight", factor_bt, seen)
    weights_bt = weights_bt * factor_bt
    for index, correction in enumerate(slots.corrections):
        factor_bt = correction(inputs)
        check_shape(f"corrections.{index}", factor_bt, inputs)
        weights_bt = weights_bt * factor_bt
    return weights_bt


def check_shape(slot: str, found_bt: Any, inputs: TokenInputs) -> None:
    """Raises PluginError unless a slot returned a number for every token."""
    wanted, found = inputs.mask_bt.shape, getattr(found_bt, "shape", ())
    if found != wanted:
        raise PluginError(
            f"the objective's slot {slot} returned shape {list(found)}, expected {list(wanted)}: "
            "a number for every token"
        )
