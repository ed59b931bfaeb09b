"""Replaces the cross-entropy in MaxText's ``loss_fn`` by the RL loss, and computes log-probs alone.

The stock function runs unchanged, except that the cross-entropy it calls returns zeros while it is
traced. Its result is then exactly its auxiliary terms (MoE load balance, multi-token prediction,
indexer), and its router-bias updates come along. Added to them:

    no accumulation     total = rl_sum / rl_weight + aux
    accumulation        total = rl_sum + aux * rl_weight    (MaxText divides by sum(rl_weight))

With ``num_vocab_tiling`` above 1 the model returns hidden states instead of logits, and the stock
function calls another cross-entropy, which is replaced in the same way. Our tiles lie along the
vocabulary; MaxText's, which only ``warm_start`` uses, along the tokens.

Logits are computed for the positions of ``kept_positions``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from maxtext_overrides.kept_positions import KeptPositions, outputs_at
from maxtext_overrides.trainer import output_head
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import OverrideError
from maxtext_overrides.vocabulary import dense_outputs
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.training.objective.batches import temperature_of
from rlax_plugin.training.objective.loss import TokenOutputs

Objective = Callable[[TokenOutputs, Mapping[str, jax.Array]], tuple[Any, Any, dict[str, Any]]]
"""Maps (outputs, batch arrays), all [rows, length], to (sum, weight, additive metrics)."""

LossFn = Callable[..., tuple[Any, dict[str, Any]]]  # with MaxText's signature
OutputsFn = Callable[[Any, Mapping[str, jax.Array]], TokenOutputs]

OVERRIDES = tuple(
    override
    for name in ("loss", "output_head", "model_outputs")
    for override in BY_MODULE[f"maxtext_overrides/trainer/{name}.py"]
)


OUTPUTS = ("features",)
"""Names that ``TokenOutputs.further`` may have."""

SAMPLED = "rl_group"
"""The array of a batch that is above 0 at the sampled tokens, those that train and others."""


def make_outputs_fn(
    config: Any,
    temperature: float | None,
    further: Collection[str] = (),
    positions: int | None = None,
) -> OutputsFn:
    """Returns a forward pass of the trainer's model: its graph and tiling, no loss, no gradient.

    Args:
      config: MaxText's.
      temperature: see ``batches.temperature_of``; above 0.
      further: of ``OUTPUTS``, the names that ``TokenOutputs.further`` is to have.
      positions: number of positions of a row for which logits are computed, if ``data`` has
        ``rl_group``: at least as many as have one; log-probs and entropy are 0 elsewhere. None: all
        positions.

    Returns:
      ``outputs(model, data) -> TokenOutputs`` of ``data["targets"]``, to be traced by JAX under
      ``Loop.shardings()``. ``model`` is what MaxText's loss_fn gets, an ``nnx.Module``
      (``nnx.merge(graph, state)``), and is left unchanged; ``data`` holds MaxText's six arrays,
      int32 [rows, length], others but ``rl_temperature`` are ignored.
    """

    def outputs(model: Any, data: Mapping[str, jax.Array]) -> TokenOutputs:
        # A pass leaves intermediates in its model, and each trace needs variables of its own.
        model = nnx.merge(*nnx.split(model), copy=True)
        nnx.pop(model, nnx.Intermediate)
        divisor = temperature_of(data, temperature)
        kept = _kept(data, SAMPLED, positions)
        with _shown_hidden(config, further, kept) as hidden:
            logits = model(
                decoder_input_tokens=data["inputs"],
                decoder_positions=data["inputs_position"],
                decoder_segment_ids=data["inputs_segmentation"],
                enable_dropout=False,
                decoder_target_tokens=data["targets"],
                decoder_target_mask=data["targets_segmentation"],
            )
        if config.num_vocab_tiling > 1:
            (hidden_bte,) = nnx.pop(model, nnx.Intermediate)["decoder"]["hidden_states"].get_value()
            hidden.append(hidden_bte)
            found = _tiled_outputs(model, hidden_bte, kept, data, divisor)
        else:
            found = _dense_outputs(logits, hidden, kept, data, divisor)
        return jax.lax.stop_gradient(_with_further(found, model, hidden, further))

    return outputs


def _kept(
    data: Mapping[str, jax.Array], wanted: str, positions: int | None
) -> KeptPositions | None:
    """Returns the positions at which an array of a batch is above 0; None: all are kept.

    Args:
      wanted: name of the array; without it all positions are kept.
      positions: see ``make_outputs_fn``.
    """
    if positions is None or wanted not in data:
        return None
    return KeptPositions.of(data[wanted] > 0, positions)


def _shown_hidden(
    config: Any, further: Collection[str], kept: KeptPositions | None
) -> AbstractContextManager[list[jax.Array]]:
    """Collects the hidden states that MaxText does not return; see ``output_head``."""
    if config.num_vocab_tiling > 1:
        return output_head.hidden_states(False)
    return output_head.hidden_states(bool(further) or kept is not None, kept=kept)


def _dense_outputs(
    logits: jax.Array,
    hidden: list[jax.Array],
    kept: KeptPositions | None,
    data: Mapping[str, jax.Array],
    divisor: Any,
) -> TokenOutputs:
    if kept is not None:
        _check_called_once(hidden)
    return outputs_at(kept, partial(dense_outputs, logits), data["targets"], divisor)


def _tiled_outputs(
    model: Any,
    hidden_bte: jax.Array,
    kept: KeptPositions | None,
    data: Mapping[str, jax.Array],
    divisor: Any,
) -> TokenOutputs:
    own = hidden_bte if kept is None else kept.take(hidden_bte)
    head = partial(output_head.head_outputs, model, own)
    return outputs_at(kept, head, data["targets"], divisor)


def _check_called_once(hidden: list[jax.Array]) -> None:
    if len(hidden) != 1:
        raise OverrideError(
            f"MaxText's decoder called its output head {len(hidden)} times, expected once: with "
            "this config it does not show its hidden states"
        )


def _with_further(
    outputs: TokenOutputs, model: Any, hidden: list[jax.Array], further: Collection[str]
) -> TokenOutputs:
    """Returns outputs with the further ones that were requested.

    Args:
      hidden: inputs of the decoder's output head.
    """
    if not further:
        return outputs
    _check_called_once(hidden)
    return outputs._replace(further={"features": output_head.features(model, hidden[0])})


@contextmanager
def _replaced(train: Any, cross_entropy: Any, tiled_cross_entropy: Any) -> Iterator[None]:
    """Replaces both functions in MaxText, and restores them when the block ends."""
    max_utils = train.max_utils
    stock = max_utils.cross_entropy_with_logits, train.vocab_tiling_nnx_loss
    max_utils.cross_entropy_with_logits = cross_entropy
    train.vocab_tiling_nnx_loss = tiled_cross_entropy
    try:
        yield
    finally:
        max_utils.cross_entropy_with_logits, train.vocab_tiling_nnx_loss = stock


def make_loss_fn(
    train: Any,
    objective: Objective,
    temperature: float | None,
    further: Collection[str] = (),
    positions: int | None = None,
) -> LossFn:
    """Returns a ``loss_fn`` for MaxText's train step.

    Args:
      train: the module ``maxtext.trainers.pre_train.train``; its present ``loss_fn`` is called.
      objective: traced by JAX. Its weight is a count, 0 or at least 1, as MaxText divides by
        max(sum of weights, 1). Its metrics are sums; they come out in
        ``aux["intermediate_outputs"]["rlax"]``, added up over micro-batches.
      temperature: see ``batches.temperature_of``.
      further: see ``make_outputs_fn``; with gradient.
      positions: number of positions of a row for which logits are computed: at least as many as
        train. The objective gets 0 for the others. None: all positions.

    Raises:
      ConfigError: temperature 0; a greedy policy has no gradient.
    """
    if temperature is not None and temperature <= 0:
        raise ConfigError("rlax.rollouts.temperature", temperature, "must be above 0 to train")
    stock_loss_fn = train.loss_fn

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
        divisor = temperature_of(data, temperature)
        kept = _kept(data, "rl_mask", positions)
        outputs: list[TokenOutputs] = []

        def keep_outputs(logits: jax.Array, targets: jax.Array, z_loss: float = 0.0) -> Any:
            del z_loss
            outputs.append(_dense_outputs(logits, hidden, kept, data, divisor))
            # The targets are one-hot; but for their shape they are unused, and so never computed.
            zeros_bt = jnp.zeros(targets.shape[:-1], jnp.float32)
            return zeros_bt, zeros_bt

        def keep_tiled_outputs(
            model: Any, hidden_states: jax.Array, data: Any, config: Any, is_train: bool
        ) -> Any:
            del config, is_train
            hidden.append(hidden_states)
            outputs.append(_tiled_outputs(model, hidden_states, kept, data, divisor))
            return jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)

        with (
            _replaced(train, keep_outputs, keep_tiled_outputs),
            _shown_hidden(config, further, kept) as hidden,
        ):
            auxiliary, aux = stock_loss_fn(
                model, config, data, dropout_rng, params, sparsity_state, is_train
            )
        if len(outputs) != 1:
            raise OverrideError(
                f"MaxText's loss_fn called its cross-entropy {len(outputs)} times, expected once: "
                "this config takes another path through it"
            )
        told = _with_further(outputs[0], model, hidden, further)
        rl_sum, rl_weight, metrics = objective(told, data)
        if config.gradient_accumulation_steps > 1:
            stock_weight = jnp.maximum(aux["total_weights"], 1)
            total = rl_sum + auxiliary * (rl_weight / stock_weight)
        else:
            total = rl_sum / jnp.maximum(rl_weight, 1) + auxiliary
        aux["xent_sum"], aux["total_weights"] = rl_sum, rl_weight
        # Accumulation would add up the hidden states of all micro-batches.
        aux["intermediate_outputs"].get("decoder", {}).pop("hidden_states", None)
        aux["intermediate_outputs"]["rlax"] = metrics
        return total, aux

    return loss_fn
