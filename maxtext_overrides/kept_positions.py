"""The positions of a batch for which logits are computed: those whose target is a sampled token.

The output layer multiplies a position with the whole vocabulary, and the targets of prompts and
padding do not train. So the hidden states of at most ``logits_per_row`` positions of each row are
gathered before it, a number that is known when the program is compiled, and log-probs and entropy
are put back in their places behind it. Layers, losses of experts, features of critics and heads of
multi-token prediction see all positions as before.

Suffixes name axes: b rows, t positions of a row, k kept positions of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.training.objective.loss import TokenOutputs

LEAST_SAVED = 64
"""The least logits to leave out for each position of a row.

Gathers and scatters move a position's features a few times, which costs what some columns of the
output layer cost. With a vocabulary of a few dozen words they would cost more than they save.
"""


def logits_per_row(config: Any) -> int | None:
    """Returns the number of positions of a row for which logits are computed; None: all of them.

    Args:
      config: MaxText's, with the section ``rlax``.
    """
    length, most = int(config.max_target_length), config.rlax.row_sampled_tokens
    left_out = (length - most) * int(config.vocab_size) / length
    # With explicit shardings each gather would have to name its own. A model of ``maxtext.m3`` has
    # a decoder of its own, whose output head ``trainer.output_head`` does not replace.
    explicit = getattr(config.shard_mode, "value", config.shard_mode) == "explicit"
    return None if explicit or config.use_m3_model or left_out < LEAST_SAVED else most


def fits(wanted_bt: np.ndarray, count: int | None) -> bool:
    """True if no row has more wanted positions than are kept."""
    return count is not None and int((wanted_bt > 0).sum(axis=1).max(initial=0)) <= count


def check_rows(step: int, batch: Mapping[str, np.ndarray], count: int | None) -> None:
    """Checks that logits are computed for all positions that train.

    Raises:
      TrainingError: a row trains more tokens than the config lets a row sample.
    """
    if count is None or fits(batch["rl_mask"], count):
        return
    most = int((batch["rl_mask"] > 0).sum(axis=1).max())
    raise TrainingError(
        f"batch of step {step}: a row trains {most} tokens, expected at most {count}, which is "
        "what rlax.rollouts.max_new_tokens, rlax.episodes and rlax.batches allow"
    )


class KeptPositions(NamedTuple):
    """The kept positions of each row.

    Attributes:
      wanted_bt: bool; positions whose outputs are wanted.
      index_bk: int32; the wanted positions of each row in order, and behind them others.
      slot_bt: int32; the place of each wanted position in ``index_bk``; 0 elsewhere.
    """

    wanted_bt: jax.Array
    index_bk: jax.Array
    slot_bt: jax.Array

    @classmethod
    def of(cls, wanted_bt: jax.Array, count: int) -> KeptPositions:
        """Returns the positions to keep; traced by JAX.

        Args:
          wanted_bt: bool; at most ``count`` in each row.
          count: number of positions to keep of each row.
        """
        index_bt = jnp.argsort(~wanted_bt, axis=1, stable=True)
        slot_bt = jnp.where(wanted_bt, jnp.cumsum(wanted_bt, axis=1) - 1, 0)
        return cls(wanted_bt, index_bt[:, :count], slot_bt)

    def take(self, values_bt: jax.Array) -> jax.Array:
        """Returns [rows, kept, ...] of values [rows, length, ...]."""
        return _taken(values_bt, self)

    def put_back(self, values_bk: jax.Array) -> jax.Array:
        """Returns [rows, length, ...] of values [rows, kept, ...]; 0 where none are wanted."""
        return _put_back(values_bk, self)


# Each is the other's transpose on wanted positions, so both passes gather: XLA's scatter, which the
# derivative of a gather would be, adds one element after the other on a CPU.


@jax.custom_vjp
def _taken(values_bt: jax.Array, kept: KeptPositions) -> jax.Array:
    return _gathered(values_bt, kept.index_bk)


@jax.custom_vjp
def _put_back(values_bk: jax.Array, kept: KeptPositions) -> jax.Array:
    return _only(kept.wanted_bt, _gathered(values_bk, kept.slot_bt))


def _gathered(values: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, _widened(index, values), axis=1, mode="promise_in_bounds")


def _only(wanted_bt: jax.Array, values_bt: jax.Array) -> jax.Array:
    return jnp.where(_widened(wanted_bt, values_bt), values_bt, jnp.zeros((), values_bt.dtype))


def _widened(array: jax.Array, like: jax.Array) -> jax.Array:
    return array.reshape(array.shape + (1,) * (like.ndim - array.ndim))


_taken.defvjp(
    lambda values_bt, kept: (_taken(values_bt, kept), kept),
    lambda kept, cotangent_bk: (_put_back(cotangent_bk, kept), None),
)
_put_back.defvjp(
    lambda values_bk, kept: (_put_back(values_bk, kept), kept),
    lambda kept, cotangent_bt: (_taken(_only(kept.wanted_bt, cotangent_bt), kept), None),
)


def outputs_at(
    kept: KeptPositions | None,
    outputs: Callable[[jax.Array, Any], TokenOutputs],
    targets_bt: jax.Array,
    temperature: Any,
) -> TokenOutputs:
    """Returns outputs for whole rows, computed for the kept positions only.

    Args:
      kept: None: all positions are kept.
      outputs: (targets, temperature) of the kept positions -> their outputs.
      targets_bt: int32 [rows, length].
      temperature: see ``vocabulary.dense_outputs``.
    """
    if kept is None:
        return outputs(targets_bt, temperature)
    if isinstance(temperature, jax.Array):
        temperature = kept.take(temperature)
    found = outputs(kept.take(targets_bt), temperature)
    return TokenOutputs(kept.put_back(found.logprobs_bt), kept.put_back(found.entropy_bt))
