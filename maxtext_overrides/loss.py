"""The RL loss inside MaxText's own ``loss_fn``.

The stock function runs as it is, except that the cross-entropy it calls is answered with zeros
while it runs under the tracer. What it returns is then exactly its auxiliary terms (MoE load
balance, multi-token prediction, indexer), and its router-bias updates come along. Added to them:

    no accumulation     total = rl_sum / rl_weight + aux
    accumulation        total = rl_sum + aux * rl_weight    (MaxText divides by sum(rl_weight))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.signatures import Override, OverrideError
from rlax_plugin.errors import ConfigError

Objective = Callable[[jax.Array, Mapping[str, jax.Array]], tuple[Any, Any, dict[str, Any]]]
"""(log-probs [rows, length], batch arrays) -> (sum, weight, additive metrics)."""

LossFn = Callable[..., tuple[Any, dict[str, Any]]]  # with MaxText's signature

OVERRIDES = (
    Override(
        symbol="maxtext.trainers.pre_train.train.loss_fn",
        signature="(model, config, data, dropout_rng, params, sparsity_state=None, is_train=True)",
        sha256="7a97c1cc3bd1b19ab90e7f36930dfc7e8187bb4ced227b2014488d213ba4253a",
        why="the objective needs log-probs of the targets; the stock loss is cross-entropy",
        delete_when="MaxText's train_loop takes a loss function",
    ),
    Override(
        symbol="maxtext.utils.max_utils.cross_entropy_with_logits",
        signature="(logits, targets, z_loss=0.0)",
        sha256="7ddc2f4ca57ab124252334bb78afecf505901bdbd5d4a25a10dde426c29b59ec",
        why="replaced while the stock loss_fn is traced: there the logits can be had",
        delete_when="MaxText's train_loop takes a loss function",
    ),
    Override(
        symbol="maxtext.utils.gradient_accumulation.gradient_accumulation_loss_and_grad",
        signature="(_loss_fn, config, model, params, params_shardings, data, dropout_rng)",
        sha256="7807d0b23ab33c3cf629b1c9e15a967a1f9fb27683881629ce56c1264dcfd1fd",
        why="relied on: it sums losses and aux['total_weights'] and divides once",
        delete_when="MaxText documents what a loss returns under accumulation",
    ),
)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def target_logprobs(logits_btv: jax.Array, targets_bt: jax.Array, temperature: float) -> jax.Array:
    """log softmax(logits / temperature) at the targets, float32 [rows, length].

    Selects by comparing instead of gathering, so that a vocabulary sharded over devices stays so,
    and keeps only the logits themselves for the backward pass.

    Args:
      logits_btv: [rows, length, vocabulary], any float dtype.
      targets_bt: int32 [rows, length].
      temperature: above 0.
    """
    return _forward(logits_btv, targets_bt, temperature)[0]


def _is_target(logits_btv: jax.Array, targets_bt: jax.Array) -> jax.Array:
    vocabulary = jax.lax.broadcasted_iota(jnp.int32, logits_btv.shape, 2)
    return vocabulary == targets_bt[..., None]


def _forward(logits_btv: jax.Array, targets_bt: jax.Array, temperature: float) -> tuple[Any, Any]:
    scaled_btv = logits_btv.astype(jnp.float32) / temperature
    log_z_bt = jax.nn.logsumexp(scaled_btv, axis=-1)
    target_bt = jnp.sum(jnp.where(_is_target(logits_btv, targets_bt), scaled_btv, 0.0), axis=-1)
    return target_bt - log_z_bt, (logits_btv, targets_bt, log_z_bt)


def _backward(temperature: float, saved: Any, cotangent_bt: jax.Array) -> tuple[Any, None]:
    logits_btv, targets_bt, log_z_bt = saved
    p_btv = jnp.exp(logits_btv.astype(jnp.float32) / temperature - log_z_bt[..., None])
    one_hot_btv = _is_target(logits_btv, targets_bt).astype(jnp.float32)
    gradient_btv = (one_hot_btv - p_btv) * (cotangent_bt / temperature)[..., None]
    return gradient_btv.astype(logits_btv.dtype), None


target_logprobs.defvjp(_forward, _backward)


@contextmanager
def _replaced_cross_entropy(max_utils: Any, replacement: Callable[..., Any]) -> Iterator[None]:
    original = max_utils.cross_entropy_with_logits
    max_utils.cross_entropy_with_logits = replacement
    try:
        yield
    finally:
        max_utils.cross_entropy_with_logits = original


def make_loss_fn(
    stock_loss_fn: LossFn, max_utils: Any, objective: Objective, temperature: float
) -> LossFn:
    """A ``loss_fn`` for MaxText's train step.

    Args:
      stock_loss_fn: MaxText's.
      max_utils: the module as ``train.py`` sees it.
      objective: traced by JAX. Its weight is a count, 0 or at least 1, as MaxText divides by
        max(sum of weights, 1). Its metrics are sums; they come out in
        ``aux["intermediate_outputs"]["rlax"]``, added up over micro-batches.
      temperature: that the rollouts are drawn with.

    Raises:
      ConfigError: temperature 0; a greedy policy has no gradient.
    """
    if temperature <= 0:
        raise ConfigError("rlax.rollouts.temperature", temperature, "must be above 0 to train")

    def loss_fn(
        model: Any,
        config: Any,
        data: Mapping[str, jax.Array],
        dropout_rng: Any,
        params: Any,
        sparsity_state: Any = None,
        is_train: bool = True,
    ) -> tuple[Any, dict[str, Any]]:
        data = dict(data)  # the stock function cuts its arrays in place
        logprobs: list[jax.Array] = []

        def keep_logprobs(logits: jax.Array, targets: jax.Array, z_loss: float = 0.0) -> Any:
            del targets, z_loss  # one-hot, unused and so never computed
            logprobs.append(target_logprobs(logits, data["targets"], temperature))
            zeros = jnp.zeros(logits.shape[:-1], jnp.float32)
            return zeros, zeros

        with _replaced_cross_entropy(max_utils, keep_logprobs):
            auxiliary, aux = stock_loss_fn(
                model, config, data, dropout_rng, params, sparsity_state, is_train
            )
        if len(logprobs) != 1:
            raise OverrideError(
                f"MaxText's loss_fn called its cross-entropy {len(logprobs)} times, expected once: "
                "this config takes another path through it"
            )
        rl_sum, rl_weight, metrics = objective(logprobs[0], data)
        if config.gradient_accumulation_steps > 1:
            stock_weight = jnp.maximum(aux["total_weights"], 1)
            total = rl_sum + auxiliary * (rl_weight / stock_weight)
        else:
            total = rl_sum / jnp.maximum(rl_weight, 1) + auxiliary
        aux["xent_sum"], aux["total_weights"] = rl_sum, rl_weight
        aux["intermediate_outputs"]["rlax"] = metrics
        return total, aux

    return loss_fn
