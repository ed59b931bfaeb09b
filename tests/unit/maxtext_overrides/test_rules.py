"""The table of tensors and variables, from a model's tensors to MaxText's variables and back."""

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
