"""The table of tensors and variables, from a model's tensors to MaxText's variables and back."""

from __future__ import annotations

from pathlib import Path

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
