"""A worker generates with a converted model what transformers generates."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from tiny_engine import SLOTS, Case

from maxtext_overrides.models.convert import examine
from maxtext_overrides.sampler.decode import Prefill
from rlax_plugin.base.types import SamplingParams

# Each has something that the others lack: windows, pairs, experts, scaled positions.
FAMILIES = ("gemma2_other", "gemma3", "llama32", "mixtral_wide", "qwen3_moe")
CI = ("gemma3",)
NEW = 16  # tokens, which go beyond each window


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.ci if f in CI else pytest.mark.long) for f in FAMILIES],
)
def test_greedy_tokens_and_logprobs(family: str, tmp_path: Path) -> None:
    reference = tiny_models.known(family)
    model = examine(tiny_models.write(family, tmp_path / "source"), "float32", True)
    prompt = np.array(tiny_models.prompt(reference["config"]["vocab_size"]), np.int32)
    keys = model.keys | {"override_model_config": True}
    length = len(prompt) + NEW
    case = Case(
        **keys,
        sparse_matmul=False,  # the kernel for experts is compiled for minutes on a CPU
        max_prefill_predict_length=len(prompt),
        max_target_length=length,
    )
    weights = {
        v.name: jnp.asarray(v.of_tensors(model.source.read, np.dtype(np.float32)))
        for v in model.variables
    }
    greedy = SamplingParams(temperature=1.0, top_k=1, max_new_tokens=NEW)
    # Slots that start later have their tokens elsewhere in the ring of the cache.
    for slot in range(SLOTS - 1):
        case.engine.insert(weights, [Prefill(prompt, (slot,), (slot,), greedy)])
        case.engine.decode(weights, 1, False)
    last = [Prefill(prompt, (SLOTS - 1,), (1,), greedy)]
    case.engine.insert(weights, last)
    found = {g.slot: g for g in case.engine.decode(weights, 1000, False)}
    assert set(found) == set(range(SLOTS))
    for slot, generated in found.items():
        assert generated.tokens.tolist() == reference["greedy"], slot
        logits = case.completion_logits(prompt, generated.tokens, weights)
        top = logits - logits.max(axis=-1, keepdims=True)
        full = top - np.log(np.exp(top).sum(axis=-1, keepdims=True))
        expected = full[np.arange(NEW), generated.tokens]
        np.testing.assert_allclose(generated.logprobs, expected, atol=2e-4)
