"""Contracts activations with weight matrices in the form that XLA's CPU backend computes fast.

MaxText contracts [rows, length, features] with [features, out]. The forward pass is as fast either
way, but for the gradient of the matrix XLA then sums over two axes, rows and length, in a slow
program: one 576 x 1536 matrix and 1024 tokens, forward and backward, took 19 ms in float32 and
54 ms in bfloat16, and with rows and length as one axis 13 and 10 ms. The results are the same
except for rounding in bfloat16.

Only matrices are folded. Kernels of three axes, such as [features, heads, head_dim], are already
contracted fast, and folding makes some of them slower. ``adapters`` folds for itself.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

OVERRIDES = BY_MODULE["maxtext_overrides/folding.py"]


_target: str | None = None


def compile_for(platform: str) -> None:
    """Makes this process compile for a platform other than the one that it computes on."""
    global _target
    _target = platform


def pays() -> bool:
    """True on a CPU with one device; with several, folded axes could not be sharded apart."""
    return (_target or jax.default_backend()) == "cpu" and jax.device_count() == 1


def fold(inputs: jax.Array) -> jax.Array:
    """Returns [..., features] reshaped to [rows, features]."""
    return inputs.reshape(-1, inputs.shape[-1])


def install(allow_untested: bool = False) -> None:
    """Replaces MaxText's function for the rest of the process; a second call changes nothing.

    The trainer calls it before it traces a model. Workers have no backward pass and gain nothing.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    linears, name, stock = resolve(OVERRIDES[0].symbol)
    if not hasattr(stock, "__wrapped__"):
        setattr(linears, name, folding(stock))


def folding(stock: Any) -> Any:
    """Returns ``_compute_dot_general_nnx`` with folding where it pays, and ``stock`` elsewhere."""

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
