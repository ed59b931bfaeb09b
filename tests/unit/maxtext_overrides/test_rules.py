"""The table of tensors and variables, from a model's tensors to MaxText's variables and back."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny_models

from maxtext_overrides.models.huggingface_config import architecture
from maxtext_overrides.models.rules import variables

FAMILIES = tuple(name for name in tiny_models.FAMILIES if name != "gemma")  # not supported
FLOAT32 = np.dtype(np.float32)


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unscanned"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_comes_back(family: str, scanned: bool) -> None:
    """Also those of layers that remain where a block of scanned layers has several of them."""
    original = tiny_models.weights_of(family)
    model = architecture(tiny_models.known(family)["config"], Path("config.json"))
    again: dict[str, np.ndarray] = {}
    for variable in variables(model, scanned):
        value = variable.of_tensors(original.__getitem__, FLOAT32)
        assert value.shape == variable.shape and len(np.unique(value)) > value.size // 2
        again |= variable.to_tensors(value, FLOAT32)
    assert again.keys() == original.keys()
    exact = not family.startswith("gemma")  # where MaxText's value is rounded once more
    for name, tensor in original.items():
        np.testing.assert_allclose(again[name], tensor, atol=0 if exact else 3e-7, rtol=0)


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unscanned"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_laid_out_as_its_matrix(family: str, scanned: bool) -> None:
    """The variable made of the tensors B A is the product of those made of A and of B."""
    rank, rng = 3, np.random.default_rng(0)
    model = architecture(tiny_models.known(family)["config"], Path("config.json"))
    count = 0
    for variable in variables(model, scanned):
        if not re.search(r"\.(self_attention|mlp)[^.]*\.\w+\.kernel$", variable.name):
            continue
        count += len(variable.tensors)
        outputs, inputs = variable.tensor_shape
        halves = variable.adapter(rank)
        assert halves[1].tensors[0].startswith("base_model.model.model.layers.")
        shapes = {name: s for half in halves for name, s in half.tensor_shapes.items()}
        assert set(shapes.values()) == {(rank, inputs), (outputs, rank)}
        drawn = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        products = {
            name: drawn[b] @ drawn[a]
            for name, a, b in zip(variable.tensors, *(half.tensors for half in halves), strict=True)
        }
        a, b = (half.of_tensors(drawn.__getitem__, FLOAT32) for half in halves)
        whole = variable.of_tensors(products.__getitem__, FLOAT32)
        layers_first = (np.moveaxis(x, 1, 0) if a.ndim == 3 else x for x in (a, b, whole))
        a_ir, b_ro, whole = layers_first
        np.testing.assert_allclose((a_ir @ b_ro).reshape(whole.shape), whole, atol=1e-5)
        again = dict(halves[0].to_tensors(a, FLOAT32)) | dict(halves[1].to_tensors(b, FLOAT32))
        for name, tensor in drawn.items():
            atol = 3e-7 if variable.is_rescaled else 0
            np.testing.assert_allclose(again[name], tensor, atol=atol, rtol=0)
    assert count >= 4 * model.layers


def test_a_bfloat16_export_keeps_what_gemmas_norms_multiply_by() -> None:
    """1 + w to the bit where it is .5 or more, and within 2^-24: bfloat16 would lose a small w."""
    tensors = tiny_models.weights_of("gemma2")
    model = architecture(tiny_models.known("gemma2")["config"], Path("config.json"))
    norms = [variable for variable in variables(model, True) if "norm" in variable.name]
    assert len(norms) == 9  # four of each of two layers, and the last
    some = np.float32([1.0, 1 + 2**-23, 1.001, 0.7, 0.5, 3.5, 1e-3, -0.2])
    for variable in variables(model, True):
        value = variable.of_tensors(tensors.__getitem__, FLOAT32)
        if variable in norms:
            value[...] = np.resize(some, value.shape)
        exported = dict(variable.to_tensors(value, np.dtype(ml_dtypes.bfloat16)))
        dtypes = {tensor.dtype.name for tensor in exported.values()}
        assert dtypes == {"float32" if variable in norms else "bfloat16"}
        if variable in norms:
            again = variable.of_tensors(exported.__getitem__, FLOAT32)
            np.testing.assert_array_equal(again[value >= 0.5], value[value >= 0.5])
            np.testing.assert_allclose(again, value, atol=2**-24, rtol=0)
