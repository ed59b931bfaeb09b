"""Defines which variables are rounded in weight versions of bfloat16, and makes such versions.

With ``dtype: bfloat16`` MaxText casts a float32 matrix to bfloat16 before it computes with it, so a
version with the rounded matrix makes no difference. Other variables may be computed with in
float32: scales of norms, gates and biases of experts, sinks of attention. They stay as they are,
and so does every variable that is not known here. Their part of the bytes is small.

Upstream symbols: ``DenseGeneral``, ``Embed`` and ``RoutedMoE`` of ``maxtext.layers``; tested by
comparing the log-probs of both. Delete when MaxText itself casts the weights of a served model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The matrices of attention (plain, latent, linear, and the keys of an indexer), of MLPs and of
# experts, and of Gemma's embeddings for each layer.
_CAST = re.compile(
    r"\.(query|key|value|qkv_proj|out|wq_a|wq_b|wkv_a|wkv_b|wk|in_proj_qkvz|out_proj)\.kernel$"
    r"|\.(wi|wi_0|wi_1|wo|per_layer_model_projection)\.kernel$"
    r"|\.kernel_lora_[ab]$"
    r"|\.(wi|wi_0|wi_1|wo|embed_tokens_per_layer)$"
)
# The output layer, which ``logits_dot_in_fp32`` computes in float32; the embedding may be one.
_OUTPUT = re.compile(r"^token_embedder\.embedding$|\.logits_dense\.kernel$")


def version_dtypes(variables: Mapping[str, Any], config: Any, rounds: bool) -> dict[str, Any]:
    """Returns the dtypes that variables have in weight versions.

    Args:
      variables: name -> anything with a dtype.
      config: MaxText's.
      rounds: True for versions of bfloat16, False for those with the dtypes of the variables.
    """
    return {
        name: np.dtype(jnp.bfloat16)
        if rounds and like.dtype == np.float32 and _is_cast(name, config)
        else np.dtype(like.dtype)
        for name, like in variables.items()
    }


def _is_cast(name: str, config: Any) -> bool:
    if _OUTPUT.search(name):
        return not config.logits_dot_in_fp32
    return is_cast(name)


def is_cast(name: str) -> bool:
    """True if a variable other than the output layer is cast to ``dtype`` before arithmetic."""
    return _CAST.search(name) is not None


def version_like(variables: Mapping[str, Any], config: Any, rounds: bool) -> dict[str, Any]:
    """Returns the shape and dtype of each variable in weight versions; see ``version_dtypes``."""
    dtypes = version_dtypes(variables, config, rounds)
    return {
        name: jax.ShapeDtypeStruct(like.shape, dtypes[name]) for name, like in variables.items()
    }


def copied(
    variables: Mapping[str, jax.Array], config: Any, rounds: bool
) -> Mapping[str, jax.Array]:
    """Returns a weight version in new buffers; see ``version_dtypes``. Launches a computation."""
    dtypes = version_dtypes(variables, config, rounds)
    return _copied(dict(variables), tuple(dtypes[name] for name in variables))


@functools.partial(jax.jit, static_argnums=1)
def _copied(variables: dict[str, jax.Array], dtypes: tuple[Any, ...]) -> dict[str, jax.Array]:
    return {
        name: jnp.copy(array) if array.dtype == dtype else array.astype(dtype)
        for (name, array), dtype in zip(variables.items(), dtypes, strict=True)
    }
