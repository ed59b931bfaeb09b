"""The attention mask of rows in which samples share their prompt.

MaxText's mask lets a token attend to those before it with the same segment. Here a segment is a
pair, the prompt and the answer (``rlax_plugin.training.objective.shared_prompts``), which travels
through the model as one int32: MaxText compares prompts, and the answers are compared beside it.

Only attention by ``dot_product`` over all positions asks this function. Other kernels compare
segments themselves, and windows count the places of a row, not the positions of a sequence.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.training.objective.shared_prompts import ANSWER

_SYMBOL = "maxtext.layers.attention_op.AttentionOp.generate_attention_mask"
OVERRIDES = (
    # A worker wraps it as well, in a process of its own, and each symbol is declared once.
    *(one for one in BY_MODULE["maxtext_overrides/sampler/windows.py"] if one.symbol == _SYMBOL),
    *BY_MODULE["maxtext_overrides/trainer/shared_prompts.py"],
)
_MASKED = "_rlax_shared_prompts"


def install(allow_untested: bool = False) -> None:
    """Wraps the function for the rest of the process; a second call changes nothing.

    Rows without shared prompts, such as those of a warm start, are masked as before.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    operation, name, stock = resolve(OVERRIDES[0].symbol)
    _, _, training = resolve(OVERRIDES[1].symbol)
    _, _, masked = resolve(OVERRIDES[2].symbol)
    if hasattr(stock, _MASKED):
        return

    @functools.wraps(stock)
    def generate_attention_mask(
        self: Any,
        query: Any,
        key: Any,
        decoder_segment_ids: jax.Array | None,
        model_mode: str,
        *args: Any,
        **named: Any,
    ) -> Any:
        if decoder_segment_ids is None or model_mode != training:
            return stock(self, query, key, decoder_segment_ids, model_mode, *args, **named)
        prompt_bt, answer_bt = decoder_segment_ids % ANSWER, decoder_segment_ids // ANSWER
        found = stock(self, query, key, prompt_bt, model_mode, *args, **named)
        return jnp.where(seen(answer_bt), found, masked)

    setattr(generate_attention_mask, _MASKED, True)
    setattr(operation, name, generate_attention_mask)


def seen(answer_bt: jax.Array) -> jax.Array:
    """Returns whether a token may attend to another of the same prompt: bool [rows, 1, 1, t, t].

    Args:
      answer_bt: int32 [rows, length], the answer of each token, 0 if it is of the prompt.
    """
    of_query_bt1, of_key_b1t = answer_bt[:, :, None], answer_bt[:, None, :]
    return ((of_key_b1t == 0) | (of_key_b1t == of_query_bt1))[:, None, None]
