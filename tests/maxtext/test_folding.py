"""Products with matrices give the same numbers folded to two axes as MaxText's own, and gradients.

The reference is MaxText's own function, and where that rounds, the same product in float64.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.layers import embeddings, linears, nnx_decoders

from maxtext_overrides import folding, tied_head

# [features] + [out] of products with weights in a block of the models here, SmolLM2's halved: gate
# or up, down, queries, the product behind attention.
FEATURES = {
    "gate": ((288,), (768,)),
    "down": ((768,), (288,)),
    "queries": ((288,), (9, 32)),
    "attention": ((9, 32), (288,)),
}
MATRICES = {"gate", "down"}
STOCK = getattr(linears._compute_dot_general_nnx, "__wrapped__", linears._compute_dot_general_nnx)
ROWS, LENGTH = 3, 7


@pytest.fixture
def fold(monkeypatch):
    """Whether a CPU folds depends on its devices; here it does."""
    monkeypatch.setattr(folding, "pays", lambda: True)


def operands(name, dtype):
    features, out = FEATURES[name]
    rng = np.random.default_rng(0)
    shapes = ((ROWS, LENGTH, *features), (*features, *out), (ROWS, LENGTH, *out))
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def product(function, axes):
    def call(inputs, kernel):
        axis = tuple(range(inputs.ndim - axes, inputs.ndim))
        return function(inputs, kernel, axis, tuple(range(axes)), "default", None, False)

    return call


def with_gradients(function, inputs, kernel, cotangent):
    outputs, pull_back = jax.vjp(function, inputs, kernel)
    return outputs, *pull_back(cotangent)


def axes_of_dots(function, *arguments):
    """Number of axes of both operands of every product, backward pass included."""
    traced = jax.make_jaxpr(lambda *a: with_gradients(function, *a))(*arguments)
    dots = [e for e in traced.jaxpr.eqns if e.primitive.name == "dot_general"]
    return {tuple(v.aval.ndim for v in e.invars) for e in dots}


@pytest.mark.parametrize("name", FEATURES)
def test_values_and_gradients_are_those_of_maxtext(name, fold):
    inputs, kernel, cotangent = operands(name, jnp.float32)
    axes = len(FEATURES[name][0])
    folded = product(folding.folding(STOCK), axes)
    arguments = (inputs, kernel, cotangent)
    found = with_gradients(folded, *arguments)
    expected = with_gradients(product(STOCK, axes), *arguments)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype == jnp.float32
        assert np.abs(one).max() > 1
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-5)
    assert (axes_of_dots(folded, *arguments) == {(2, 2)}) == (name in MATRICES)


def test_bfloat16_is_no_less_exact_than_maxtext(fold):
    arguments = operands("down", jnp.bfloat16)
    inputs, kernel, cotangent = (np.asarray(a, np.float64) for a in arguments)
    exact = (
        inputs @ kernel,
        cotangent @ kernel.T,
        inputs.reshape(-1, inputs.shape[-1]).T @ cotangent.reshape(-1, cotangent.shape[-1]),
    )
    found = with_gradients(product(folding.folding(STOCK), 1), *arguments)
    for one, true in zip(found, exact, strict=True):
        # Half a unit in the last of the 8 binary digits of each number, and some of the sums.
        np.testing.assert_allclose(np.asarray(one, np.float64), true, rtol=2**-8, atol=2e-2)


def test_a_float32_tied_head_gives_the_same_logits_and_gradients(fold, monkeypatch):
    monkeypatch.setattr(nnx_decoders, "attend_on_embedding", embeddings.attend_on_embedding)
    tied_head.install()
    config = SimpleNamespace(
        shard_mode=embeddings.ShardMode.AUTO, parameter_memory_host_offload=False
    )

    def head(query, table):
        return nnx_decoders.attend_on_embedding(query, table, jnp.float32, config)

    def plain(query, table):
        return jnp.einsum("bte,ve->btv", query, table)

    rng = np.random.default_rng(0)
    shapes = (ROWS, LENGTH, 64), (300, 64), (ROWS, LENGTH, 300)
    arguments = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    found, expected = with_gradients(head, *arguments), with_gradients(plain, *arguments)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-5)
    assert axes_of_dots(head, *arguments) == {(2, 2)}
    monkeypatch.setattr(folding, "pays", lambda: False)
    assert {3} <= {axes for pair in axes_of_dots(head, *arguments) for axes in pair}


@pytest.mark.parametrize(
    "changed",
    [
        {"quant_dot_general": "an operation of its own"},
        {"out_sharding": "an explicit sharding"},
        {"kernel_scale": "of a quantised kernel"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_quantised_or_sharded_reaches_maxtext_as_it_is(changed, fold):
    calls = []

    def stock(inputs, kernel, axis, contract_ind, matmul_precision, quant_dot_general, *rest, **n):
        calls.append((inputs.shape, axis, quant_dot_general, *rest, n.get("kernel_scale")))

    inputs, kernel, _ = operands("gate", jnp.float32)
    arguments = {"quant_dot_general": None, "initializing": False} | changed
    folding.folding(stock)(inputs, kernel, (2,), (0,), "default", **arguments)
    ((shape, axis, *given),) = calls
    assert (shape, axis) == (inputs.shape, (2,))
    assert next(iter(changed.values())) in given


def test_other_backends_and_several_devices_do_not_fold(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert not folding.pays()
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert folding.pays()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert not folding.pays()


def test_installed_twice_it_folds_once_and_is_still_checked(monkeypatch):
    monkeypatch.setattr(linears, "_compute_dot_general_nnx", STOCK)
    folding.install()
    installed = linears._compute_dot_general_nnx
    folding.install()  # looks at MaxText's source again, behind what was put in its place
    assert linears._compute_dot_general_nnx is installed
    assert installed.__wrapped__ is STOCK
