"""Contracts of the slots that JAX traces: aggregation, importance weight, correction, grad terms.

A part is put into an objective whose other slots are the simplest ones, and its loss is
differentiated. Suffix ``_bt``: [rows, length].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np

from rlax_plugin.config import Algorithm
from rlax_plugin.objective.inputs import RatioFactor, SlotMetrics
from rlax_plugin.objective.loss import (
    ObjectiveSlots,
    Ratio,
    TokenInputs,
    term_weights,
    token_inputs,
)
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.loss import (
    ATOL,
    LENGTH,
    QUICKLY,
    ROWS,
    RTOL,
    SEQUENCES,
    Batch,
    Evaluate,
    batch,
    check_loss,
    compiled,
    split,
)
from rlax_plugin.testing.contracts.trial import Trial

_FAR = 60.0  # nats between two policies that have nothing in common
_ONE_MICRO_BATCH = (
    "look at no more than a token and its sequence (inputs.sequence_sum, sequence_mean, "
    "length_bt): a slot sees one micro-batch, and the trainer divides by the total weight of all"
)
_AGGREGATION = (
    "return (weights_bt, total), the total counting what trains, such as inputs.mask_bt.sum() "
    "or inputs.sequence_count(), and do not divide by it: the trainer divides once, by the sum of "
    "the totals of all micro-batches"
)


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
        "max_sequences": SEQUENCES,
        "steps": 10,
    }
    return ObjectiveSlots(**{**known, **slots})


def check_aggregation(trial: Trial, part: Inspection) -> None:
    """Checks weights and their total."""
    function = trial.built(part)
    slots = _plainest(aggregation=function)
    with part.rule("returns (weights_bt, total): [rows, length] and a number", _AGGREGATION):
        result = function(_inputs(slots, batch()))
        pair = isinstance(result, tuple) and len(result) == 2
        require(pair, f"it returned {type(result).__name__}, not a pair")
        weights_bt, total = cast(tuple[Any, Any], result)
        _check_tokens(weights_bt)
        require(np.shape(total) == (), f"the total has shape {np.shape(total)}")
        require(float(np.min(weights_bt)) >= 0, "a weight is negative")
    if not part.sound:
        return
    with part.rule("the total is a count: 0 where nothing trains, else at least 1", _AGGREGATION):
        for what, of in (("nothing", batch().only([])), ("one token", batch().only([2]))):
            _, total = term_weights(slots, _inputs(slots, of))
            holds = float(total) == 0 if what == "nothing" else float(total) >= 1
            require(holds, f"the total is {float(total):g} where {what} trains")
    _check_padding(part, function, slots)
    if _check_tracing(part, function, slots):
        check_loss(part, compiled(slots), _AGGREGATION)


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
    value = compiled(slots)
    if not _check_token_function(part, function, slots, value):
        return
    with part.rule(
        "is a factor: never negative",
        "return a ratio or a mask; a log-probability is a term: offer it with "
        "rlax_register_gradient_term",
    ):
        factor_bt = np.asarray(function(_inputs(slots, batch()).frozen()))
        least = factor_bt[batch().arrays["rl_mask"] > 0].min()
        require(least >= 0, f"a factor is {least:.4g}")
    with part.rule(
        "carries no gradient of its own: nothing differs while it is differentiated",
        "return the value alone, without stop_gradient tricks: the objective's sum stops every "
        "factor's gradient. What is to be differentiated belongs into "
        "rlax_register_gradient_term",
    ):
        _check_derivative(function, slots)
    check_loss(part, value, _ONE_MICRO_BATCH)


def check_gradient_term(trial: Trial, part: Inspection) -> None:
    """Checks a term that carries the gradient."""
    function = trial.built(part)
    slots = _plainest(grad_1=function)
    value = compiled(slots)
    if not _check_token_function(part, function, slots, value):
        return
    with part.rule(
        "carries a gradient, unless it is 0",
        "compute it from inputs.logprobs_bt, ratio_bt or log_ratio_bt without stop_gradient: "
        "nothing trains otherwise",
    ):
        term_bt = np.asarray(function(_inputs(slots, batch()).frozen()))
        flat = not value(batch()).grad_bt.any()
        zero = not (term_bt * batch().arrays["rl_mask"]).any()
        require(not flat or zero, "no token has a gradient")
    check_loss(part, value, _ONE_MICRO_BATCH)


def _check_token_function(
    part: Inspection, function: Callable[[TokenInputs], Any], slots: ObjectiveSlots, value: Evaluate
) -> bool:
    with part.rule(
        "returns one number per token: [rows, length]",
        "return an array of the shape of inputs.mask_bt",
    ):
        _check_tokens(function(_inputs(slots, batch()).frozen()))
    if not part.sound:
        return False
    _check_padding(part, function, slots)
    if not _check_tracing(part, function, slots):
        return False
    with part.rule(
        f"is finite with policies {_FAR:g} nats apart",
        "make ratios with rlax_plugin.api.ratio_of, which bounds them",
    ):
        far = value(batch(apart=_FAR))
        require(np.isfinite(far.grad_bt).all(), "the gradient is not finite")
    with part.rule(
        f"its ratio, if it has one, is one of {', '.join(get_args(Ratio))}",
        "name what it multiplies the term by, or leave the attribute out",
    ):
        ratio = function.ratio if isinstance(function, RatioFactor) else None
        require(ratio is None or ratio in get_args(Ratio), f"ratio is {ratio!r}")
    if isinstance(function, SlotMetrics):
        with part.rule(
            "its metrics are {name: array [rows, length]}",
            "return one value per token; the mean over trained tokens is reported",
        ):
            _check_metrics(function.metrics(_inputs(slots, batch()).frozen()))
    return True


def _check_metrics(found: Any) -> None:
    require(isinstance(found, Mapping), f"metrics returned {type(found).__name__}")
    for name, value_bt in found.items():
        require(isinstance(name, str), f"a metric is called {name!r}")
        require(np.shape(value_bt) == (ROWS, LENGTH), f"{name} has shape {np.shape(value_bt)}")


def _check_padding(
    part: Inspection, function: Callable[[TokenInputs], Any], slots: ObjectiveSlots
) -> None:
    with part.rule(
        "more padding changes nothing: the mask says what counts",
        "multiply by inputs.mask_bt and count with inputs.mask_bt.sum() or length_bt, never with "
        "shapes, sizes or plain means, which count padding",
    ):
        for one, other in zip(
            _on_tokens(function, slots, batch()),
            _on_tokens(function, slots, batch().cropped()),
            strict=True,
        ):
            same = np.allclose(one, other, RTOL, ATOL)
            require(same, f"with less padding it returns {other} instead of {one}")


def _on_tokens(
    function: Callable[[TokenInputs], Any], slots: ObjectiveSlots, of: Batch
) -> list[np.ndarray]:
    """The part's values on trained tokens; for an aggregation also the total."""
    result = function(_inputs(slots, of).frozen())
    arrays = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
    return [x[of.arrays["rl_mask"] > 0] if x.ndim else x for x in arrays]


def _check_tracing(
    part: Inspection, function: Callable[[TokenInputs], Any], slots: ObjectiveSlots
) -> bool:
    """True if it is pure, and gives the same result when JAX traces it."""
    import jax

    found_before = len(part.findings)
    inputs = _inputs(slots, batch()).frozen()
    arrays = {k: getattr(inputs, k) for k in TokenInputs.__dataclass_fields__ if k.endswith("_bt")}

    def plain(arrays: Mapping[str, Any]) -> Any:
        return function(replace(inputs, **arrays))

    with part.rule(
        "is a pure function: called twice, it returns the same",
        "keep no state and generate no random numbers in it",
    ):
        require(_equal(plain(arrays), plain(arrays), exact=True), "two calls differ")
    with part.rule(
        "JAX can trace it, and it computes the same under jit",
        "use jax.numpy on whole arrays: jax.numpy.where in place of if, no float() and no numpy",
    ):
        traced = jax.jit(plain, compiler_options=QUICKLY)(arrays)
        require(_equal(traced, plain(arrays), exact=False), "under jit it returns something else")
    return len(part.findings) == found_before


def _equal(one: Any, other: Any, *, exact: bool) -> bool:
    import jax

    rtol, atol = (0.0, 0.0) if exact else (RTOL, ATOL)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol, atol, equal_nan=True) for a, b in pairs)


def _check_derivative(function: Callable[[TokenInputs], Any], slots: ObjectiveSlots) -> None:
    """Rejects a derivative that is not that of the value, because it would carry a gradient."""
    import jax

    step = 1e-6
    with jax.enable_x64(True):
        wide = Batch(
            {
                name: x.astype(np.float64) if x.dtype == np.float32 else x
                for name, x in batch().arrays.items()
            }
        )
        inputs = _inputs(slots, wide).frozen()

        def of(logprobs_bt: Any) -> Any:
            # Factors may be masks.
            return 1.0 * function(replace(inputs, logprobs_bt=logprobs_bt))

        @functools.partial(jax.jit, compiler_options=QUICKLY)
        def derivatives(at_bt: Any, along_bt: Any) -> Any:
            _, derived_bt = jax.jvp(of, (at_bt,), (along_bt,))
            return derived_bt, of(at_bt + step * along_bt) - of(at_bt - step * along_bt)

        derived_bt, change_bt = derivatives(inputs.logprobs_bt, inputs.mask_bt)
    derived_bt, measured_bt = np.asarray(derived_bt), np.asarray(change_bt) / (2 * step)
    # None at all is what an explicit stop_gradient leaves.
    honest = not derived_bt.any() or np.allclose(derived_bt, measured_bt, rtol=1e-3, atol=1e-5)
    require(honest, "its derivative is not that of its value: stop_gradient is used to carry one")


def _check_tokens(found_bt: Any) -> None:
    shape = np.shape(found_bt)
    require(shape == (ROWS, LENGTH), f"it returned shape {list(shape)} for {[ROWS, LENGTH]}")
    dtype = np.asarray(found_bt).dtype
    require(dtype.kind in "fbi", f"its dtype is {dtype}")
    trained_n = np.asarray(found_bt)[batch().arrays["rl_mask"] > 0]
    require(np.isfinite(trained_n).all(), f"trained tokens get {trained_n}")


def _inputs(slots: ObjectiveSlots, of: Batch) -> TokenInputs:
    outputs, data = split(of)
    return token_inputs(slots, outputs, data)
