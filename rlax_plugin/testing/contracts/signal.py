"""Contract of signals: they add the declared arrays, leave batches unchanged, and restore state.

The signals see the toy policy, a few rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing import policy
from rlax_plugin.testing.builders import make_arrays, make_batch, make_group, make_prompt
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import STEPS, Trial
from rlax_plugin.testing.model import BigramView
from rlax_plugin.training.objective.batches import ARRAYS
from rlax_plugin.training.objective.inputs import TokenOutputs
from rlax_plugin.training.signals.chain import SignalChain
from rlax_plugin.training.signals.signal import BatchSignal

_NAME = "tried"
_PART_ROWS = 3  # of 8: the last part is smaller
_SAVED = 2  # of the steps


def check_signal(trial: Trial, part: Inspection) -> None:
    """Completes the batches of a few steps, and resumes from the state of one of them."""
    signal = trial.built(part)
    files = RunFiles(trial.run_dir)
    completed: dict[str, np.ndarray] = {}
    with part.rule(
        "completes every batch with the arrays that it declares, and leaves the batch as it is",
        "derive from rlax_plugin.api.BatchSignal, set arrays to {name: ArraySpec(dtype)}, with "
        "names of its own or rl_token_rewards and rl_values; return {name: array} with the shape "
        "[rows, length, *trailing] and the dtype of its spec, work on copies, and read log-probs "
        "and entropy only where rl_group is above 0: elsewhere they are not defined",
    ):
        chain = _chain(files, signal)
        chain.start(_model(0), 0)
        for step in range(1, STEPS + 1):
            batch = _batch(step)
            completed = chain.complete(_model(step - 1), step, batch)
            if step == _SAVED:
                chain.save(step)
    if not part.sound:
        return
    if signal.terms:
        _check_terms(signal, completed, part)
    with part.rule(
        "continues from its saved state: the next batch is completed with the same bits",
        "save in save() whatever a later step depends on, and read it back in restore()",
    ):
        again = trial.build()
        second = _chain(files, again)
        second.start(_model(_SAVED), _SAVED)
        found = second.complete(_model(_SAVED), STEPS, _batch(STEPS))
        for name in signal.arrays:
            message = f"{name} of step {STEPS} is not what it was without a restart"
            require(np.array_equal(found[name], completed[name], equal_nan=True), message)
        require(again.metrics == signal.metrics, f"{again.metrics} is not {signal.metrics}")


def _chain(files: RunFiles, signal: BatchSignal) -> SignalChain:
    return SignalChain({_NAME: signal}, files, lambda outcomes: outcomes.totals_n, checkpoints=dict)


def _model(version: int) -> BigramView:
    return BigramView(policy.initial_weights(version), version, 1.0, _PART_ROWS)


def _batch(step: int) -> dict[str, np.ndarray]:
    """Two groups with rewards 0 and 1, of two prompts, the same in every step."""
    groups = [
        make_group((1.0, 0.0, 1.0, 0.0), id=number, lengths=(2, 3, 4, 5), prompt=make_prompt(text))
        for number, text in enumerate(("12", "34"))
    ]
    return make_arrays(make_batch(step, groups), length=16)


def _check_terms(
    signal: BatchSignal, completed: Mapping[str, np.ndarray], part: Inspection
) -> None:
    """Checks terms with log-probs, entropies and features that differ only on padding.

    First log-probs and entropies are 0 there, as MaxText's trainer gives them to the loss.
    """
    import jax
    import jax.numpy as jnp

    told = _model(STEPS - 1).forward(completed, "logprobs", "entropy", "features")
    data = {name: completed[name] for name in (*ARRAYS, *signal.arrays)}
    outputs = TokenOutputs(
        jnp.nan_to_num(told["logprobs"]),
        jnp.nan_to_num(told["entropy"]),
        {"features": jnp.asarray(told["features"])},
    )
    trained_bt = completed["rl_mask"] > 0

    def spoilt(array: jax.Array) -> jax.Array:
        mask = trained_bt.reshape(trained_bt.shape + (1,) * (array.ndim - 2))
        return jnp.where(mask, array, jnp.nan)

    changed = jax.tree.map(spoilt, outputs)
    for name, term in signal.terms.items():
        with part.rule(
            f"term {name}: a finite sum that padding does not change, and a count as its weight",
            "select the trained tokens with jnp.where before any arithmetic, and return from "
            "weight() a count, 0 or at least 1",
        ):
            total = float(term.sum(outputs, data))
            require(math.isfinite(total), f"its sum is {total}")
            other = float(term.sum(changed, data))
            require(other == total, f"NaN on padding changes its sum from {total} to {other}")
            weight = float(term.weight(data))
            require(weight == 0 or weight >= 1, f"its weight is {weight}")
