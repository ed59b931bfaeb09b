"""Contractions with matrices of weights, as XLA's CPU backend computes them fast.

MaxText contracts [rows, length, features] with [features, out]. The forward pass does not mind, but
for the gradient of the matrix XLA then sums over two axes, rows and length, in a slow program: one
576 x 1536 matrix and 1024 tokens, forward and backward, took 19 ms in float32 and 54 ms in
bfloat16, and with rows and length as one axis 13 and 10 ms. The numbers are the same but for
rounding in bfloat16.

Only matrices are folded. Kernels of three axes, such as [features, heads, head_dim], are contracted
as fast as they are, and folded, some of them become slower.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from maxtext_overrides.upstream.declared.layers import FOLDING
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

OVERRIDES = FOLDING


def pays() -> bool:
    """Whether to fold: on a CPU, and with one device, as folded axes could not be sharded apart."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def fold(inputs: jax.Array) -> jax.Array:
    """[..., features] as [rows, features]."""
    return inputs.reshape(-1, inputs.shape[-1])


def install(allow_untested: bool = False) -> None:
    """Replaces the function for the rest of the process; again is no change.

    The trainer does it before it traces a model. Workers have no backward pass, so nothing to gain.

    Raises:
      OverrideError: MaxText is not what was tested.
    """
    check(OVERRIDES, allow_untested)
    linears, name, stock = resolve(OVERRIDES[0].symbol)
    if not hasattr(stock, "__wrapped__"):
        setattr(linears, name, folding(stock))


def folding(stock: Any) -> Any:
    """``_compute_dot_general_nnx`` that folds what pays, and leaves the rest to ``stock``."""

    @functools.wraps(stock)  # so that what is checked stays MaxText's source
    def compute_dot_general(
        inputs: jax.Array,
        kernel: jax.Array,
        axis: tuple[int, ...],
        contract_ind: tuple[int, ...],
        matmul_precision: str,
        quant_dot_general: Any,
        initializing: bool,
        out_sharding: Any = None,
        **quantised: Any,
    ) -> jax.Array:
        rest = (contract_ind, matmul_precision, quant_dot_general, initializing, out_sharding)
        is_plain = (
            quant_dot_general is None
            and out_sharding is None
            and quantised.get("kernel_scale") is None
            and kernel.dtype == inputs.dtype
        )
        of_matrix = kernel.ndim == 2 and inputs.ndim > 2 and tuple(axis) == (inputs.ndim - 1,)
        if not (is_plain and of_matrix and pays()):
            return stock(inputs, kernel, axis, *rest, **quantised)
        outputs = stock(fold(inputs), kernel, (1,), *rest, **quantised)
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])

    return compute_dot_general
