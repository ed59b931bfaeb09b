"""Contracts of objectives and of the slots that JAX traces: weights, corrections, gradient terms.

A part is put into an objective whose other slots are the simplest ones, and its loss is
differentiated as a trainer does it. Shapes are those that ``make_loss`` checks. Suffixes name axes:
``_b`` samples, ``_bt`` [rows, length].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rlax_plugin.config import Algorithm
from rlax_plugin.testing.contracts.advantage import MIXED, outcomes
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.testing.objectives import section_of, slots_of
from rlax_plugin.training.objective.loss import (
    ObjectiveSlots,
    TokenInputs,
    TokenOutputs,
    make_loss,
    term_weights,
    token_inputs,
)

_ROWS, _LENGTH, _SEQUENCES = 6, 8, 3
_RTOL, _ATOL = 1e-5, 1e-6
_FAR = 60.0  # nats between two policies that have nothing in common
_LENGTHS_B = (2, 4, 1, 3, 2)  # completion tokens; the last row, and the last column, are padding
_ONE_PER_ROW = [[0], [1], [2], [3], [4], []]
_PACKED = [[0, 2, 4], [], [1], [], [3], []]
_PIECES = ([0], [1, 2], [3, 4])  # uneven micro-batches, by row
_GROUP_B = np.array([1, 1, 2, 2, 2])
_ONE_MICRO_BATCH = (
    "look at no more than a token and its sequence (inputs.sequence_sum, sequence_mean, "
    "length_bt): a slot sees one micro-batch, and the trainer divides by the total weight of all"
)
_AGGREGATION = (
    "return (weights_bt, total), the total counting what trains, such as inputs.mask_bt.sum() "
    "or inputs.sequence_count(), and do not divide by it: the trainer divides once, by the sum of "
    "the totals of all micro-batches"
)


class Batch(NamedTuple):
    """TokenOutputs and ``rl_*`` arrays, float32 or int32 [rows, length]."""

    arrays: dict[str, np.ndarray]

    def only(self, rows: list[int]) -> Batch:
        """The same batch with all other rows empty."""
        here_bt = np.isin(np.arange(_ROWS), rows)[:, None]
        return Batch({name: np.where(here_bt, x, 0) for name, x in self.arrays.items()})


def batch(rows: list[list[int]] = _ONE_PER_ROW, apart: float = 1.1, length: int = _LENGTH) -> Batch:
    """Five samples, each after one token of prompt; ``rows`` assigns them to rows.

    Args:
      apart: maximum difference of the policies' log-probs from the sampler's, nats.
      length: of the rows.
    """
    rng = np.random.default_rng(0)
    shape = (len(_LENGTHS_B), max(_LENGTHS_B))
    behaviour = rng.uniform(-3.0, -0.2, shape)

    def near() -> np.ndarray:
        return behaviour + rng.uniform(-apart, apart, shape)

    floats = {
        "logprobs": near(),
        "entropy": rng.uniform(0, 3, shape),
        "rl_behaviour_logprobs": behaviour,
        "rl_old_logprobs": near(),
        "rl_reference_logprobs": near(),
        "rl_kl_coefficient": np.full(shape, 0.1),
        "rl_advantages": np.array([1.2, -0.7, 0.4, -1.5, 0.6])[:, None] * np.ones(shape),
        "rl_total_reward": np.array([1.0, -0.5, 0.5, -1.0, 0.0])[:, None] * np.ones(shape),
    }
    lengths_b = np.array(_LENGTHS_B)
    integers = {
        "rl_mask": 1,
        "rl_old_known": 1,
        "rl_staleness": 1,
        "rl_group": _GROUP_B,
        "rl_group_size": np.bincount(_GROUP_B)[_GROUP_B],
        "rl_group_tokens": np.bincount(_GROUP_B, lengths_b)[_GROUP_B],
        "rl_update_sequences": len(lengths_b),
        "rl_update_groups": len(np.unique(_GROUP_B)),
        "rl_sample": np.array([0, 1, 0, 1, 2]),
        "rl_sample_tokens": lengths_b,
        "rl_sample_length": lengths_b,
        "rl_step": 3,
    }
    tokens = floats | {
        name: np.broadcast_to(np.int32(values_b).reshape(-1, 1), shape)
        for name, values_b in integers.items()
    }
    arrays = {
        name: np.zeros((_ROWS, length), np.float32 if name in floats else np.int32)
        for name in (*tokens, "targets_segmentation")
    }
    for row, members in enumerate(rows):
        end = 0
        for segment, sample in enumerate(members, start=1):
            start, end = end, end + 1 + _LENGTHS_B[sample]
            arrays["targets_segmentation"][row, start:end] = segment
            for name, values in tokens.items():
                arrays[name][row, start + 1 : end] = values[sample, : _LENGTHS_B[sample]]
    return Batch(arrays)


def split(of: Batch) -> tuple[TokenOutputs, dict[str, Any]]:
    """Outputs, and the other arrays that the loss takes."""
    import jax.numpy as jnp

    data = {name: jnp.asarray(x) for name, x in of.arrays.items()}
    return TokenOutputs(data.pop("logprobs"), data.pop("entropy")), data


class _Value(NamedTuple):
    """A loss and its gradient with respect to the log-probs."""

    loss_sum: np.ndarray
    weight: np.ndarray
    grad_bt: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.loss_sum) / max(float(self.weight), 1.0)

    def on_tokens(self, of: Batch) -> np.ndarray:
        """The gradient of the mean on trained tokens, in an order that no layout changes."""
        trained_bt = of.arrays["rl_mask"] > 0
        order = np.argsort(of.arrays["rl_behaviour_logprobs"][trained_bt])
        return self.grad_bt[trained_bt][order] / max(float(self.weight), 1.0)


def _compiled(slots: ObjectiveSlots) -> Callable[[Batch], _Value]:
    """The loss as a trainer computes it, compiled for each shape."""
    import jax

    loss = make_loss(slots)

    def differentiated(outputs: TokenOutputs, data: dict[str, Any]) -> Any:
        def total(logprobs_bt: Any) -> Any:
            loss_sum, weight, _ = loss(outputs._replace(logprobs_bt=logprobs_bt), data)
            return loss_sum, weight

        return jax.value_and_grad(total, has_aux=True)(outputs.logprobs_bt)

    # Compiled in half the time, and run a few times.
    run = jax.jit(differentiated, compiler_options={"xla_backend_optimization_level": 0})

    def value(of: Batch) -> _Value:
        (loss_sum, weight), grad_bt = jax.device_get(run(*split(of)))
        return _Value(loss_sum, weight, grad_bt)

    return value


def _plainest(**slots: Any) -> ObjectiveSlots:
    """Every token has weight 1, the term is log pi, pi_old is the policy before the update."""
    known: dict[str, Any] = {
        "aggregation": lambda inputs: (inputs.mask_bt, inputs.mask_bt.sum()),
        "advantages": lambda outcomes: outcomes.rewards_n,
        "importance_weight": lambda inputs: inputs.mask_bt,
        "grad_1": lambda inputs: inputs.logprobs_bt,
        "grad_2": lambda inputs: 0.0 * inputs.mask_bt,
        "corrections": (),
        "algorithm": Algorithm(old_policy="proximal"),
        "updates_per_step": 2,
        "max_sequences": _SEQUENCES,
        "steps": 10,
    }
    return ObjectiveSlots(**{**known, **slots})


def _inputs(slots: ObjectiveSlots, of: Batch) -> TokenInputs:
    return token_inputs(slots, *split(of)).frozen()


def check_objective(trial: Trial, part: Inspection) -> None:
    """Checks that the slots of a preset exist and fit each other. The results are not checked."""
    trial.built(part)
    name, section = trial.choice.name, trial.context.section
    with part.rule(
        "its slots are offered and fit each other, and one update with them is finite and trains",
        "build returns an rlax_plugin.api.Preset, see presets_from_yaml; fill aggregation, "
        "advantage and grad_1 with names that a loaded plug-in offers: "
        "check_plugin(..., plugins=(...,)) loads others",
    ):
        slots = slots_of(section_of(name, section.plugins, rollouts=section.rollouts))
        advantages = np.asarray(slots.advantages(outcomes(MIXED)))
        require(np.isfinite(advantages).all(), f"the advantages are {advantages}")
        value = _compiled(slots)(batch())
        require(np.isfinite(value.loss_sum), f"the loss is {value.loss_sum}")
        require(np.isfinite(value.grad_bt).all(), "the gradient is not finite")
        require(value.grad_bt.any(), "no token has a gradient: nothing trains")


def check_aggregation(trial: Trial, part: Inspection) -> None:
    """Checks weights and their total."""
    slots = _plainest(aggregation=trial.built(part))
    with part.rule(
        "returns (weights_bt, total): no weight is negative, and the total is a count: 0 where "
        "nothing trains, else at least 1",
        _AGGREGATION,
    ):
        for what, of in (("nothing", batch().only([])), ("one token", batch().only([2]))):
            weights_bt, total = term_weights(slots, _inputs(slots, of))
            require(float(np.min(weights_bt)) >= 0, "a weight is negative")
            holds = float(total) == 0 if what == "nothing" else float(total) >= 1
            require(holds, f"the total is {float(total):g} where {what} trains")
    _check_loss(part, slots, _AGGREGATION)


def check_importance_weight(trial: Trial, part: Inspection) -> None:
    """Checks a factor of every term."""
    function = trial.built(part)
    _check_factor(function, _plainest(importance_weight=function), part)


def check_correction(trial: Trial, part: Inspection) -> None:
    """Checks a further factor."""
    function = trial.built(part)
    _check_factor(function, _plainest(corrections=(function,)), part)


def _check_factor(
    function: Callable[[TokenInputs], Any], slots: ObjectiveSlots, part: Inspection
) -> None:
    _check_loss(part, slots, _ONE_MICRO_BATCH)
    with part.rule(
        "is a factor, never negative, and carries no gradient of its own",
        "return a ratio or a mask, without stop_gradient tricks: the objective's sum stops every "
        "factor's gradient. A log-probability, and whatever is to be differentiated, belongs into "
        "rlax_register_gradient_term",
    ):
        import jax

        inputs = _inputs(slots, batch())
        trained_bt = np.asarray(inputs.mask_bt) > 0

        def of(logprobs_bt: Any) -> Any:
            return 1.0 * function(replace(inputs, logprobs_bt=logprobs_bt))  # it may be a mask

        factor_bt, derived_bt = jax.jvp(of, (inputs.logprobs_bt,), (inputs.mask_bt,))
        least = np.asarray(factor_bt)[trained_bt].min()
        require(least >= 0, f"a factor is {least:.4g}")
        moved_bt = of(inputs.logprobs_bt + 0.1 * inputs.mask_bt)
        honest = not np.any(derived_bt) or not np.allclose(moved_bt, factor_bt, _RTOL, _ATOL)
        require(honest, "its derivative is not that of its value, which does not change")


def check_gradient_term(trial: Trial, part: Inspection) -> None:
    """Checks a term that carries the gradient."""
    function = trial.built(part)
    slots = _plainest(grad_1=function)
    _check_loss(part, slots, _ONE_MICRO_BATCH)
    if not part.sound:
        return
    with part.rule(
        "carries a gradient, unless it is 0",
        "compute it from inputs.logprobs_bt, ratio_bt or log_ratio_bt without stop_gradient: "
        "nothing trains otherwise",
    ):
        term_bt = np.asarray(function(_inputs(slots, batch())))
        zero = not (term_bt * batch().arrays["rl_mask"]).any()
        require(zero or _compiled(slots)(batch()).grad_bt.any(), "no token has a gradient")


def _check_loss(part: Inspection, slots: ObjectiveSlots, add_up: str) -> None:
    """Checks the loss with a part in it.

    Args:
      add_up: advice for micro-batches that do not add up to the whole.
    """
    value, clean = _compiled(slots), batch()
    expected: _Value | None = None
    with part.rule(
        f"JAX can trace it; loss and gradient are finite, also with policies {_FAR:g} nats apart",
        "use jax.numpy on whole arrays: jax.numpy.where in place of if, no float() and no numpy; "
        "bound ratios with rlax_plugin.api.ratio_of and divide by nothing that may be 0",
    ):
        expected = value(clean)
        for found in (expected, value(batch(apart=_FAR))):
            require(np.isfinite(found.loss_sum), f"the loss is {found.loss_sum}")
            require(np.isfinite(found.grad_bt).all(), "the gradient is not finite")
    if expected is None:
        return
    with part.rule(
        "uneven micro-batches add up to the whole: sums of losses over the sum of weights", add_up
    ):
        pieces = [value(clean.only(rows)) for rows in _PIECES]
        added = _Value(*(np.sum([getattr(p, f) for p in pieces], axis=0) for f in _Value._fields))
        _require_same(added, clean, expected, clean, "added up over 3 micro-batches")
    with part.rule(
        "several samples packed into a row, and rows with more padding, change nothing",
        "add over sequences with inputs.sequence_sum, sequence_mean and sequence_count, not over "
        "rows: a row may hold several; multiply by inputs.mask_bt, and count with it, never with "
        "shapes, sizes or plain means, which count padding",
    ):
        packed = batch(_PACKED, length=_LENGTH + 1)
        _require_same(value(packed), packed, expected, clean, "packed")


def _require_same(value: _Value, where: Batch, expected: _Value, clean: Batch, how: str) -> None:
    close = np.isclose(value.mean, expected.mean, _RTOL, _ATOL)
    require(close, f"{how} the loss is {value.mean:.6g} instead of {expected.mean:.6g}")
    grad, wanted = value.on_tokens(where), expected.on_tokens(clean)
    if not np.allclose(grad, wanted, _RTOL, _ATOL):
        worst = int(np.abs(grad - wanted).argmax())
        require(
            False,
            f"{how} the gradient of a token is {grad[worst]:.6g} instead of {wanted[worst]:.6g}, "
            f"the total weight {float(value.weight):g} instead of {float(expected.weight):g}",
        )
