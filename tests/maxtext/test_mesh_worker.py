"""A worker on a mesh of two devices samples what one on a single device samples.

As a program it is the worker with two devices, which a process has from its start on; how a version
is read onto several devices is the matter of ``tests/contract/test_shardings.py``.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_engine

from maxtext_overrides import int8_weights
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.sampler.decode import DecodeEngine, Prefill
from maxtext_overrides.worker_slots import check_mesh
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import SamplingParams

TOKENS = np.arange(2, 11, dtype=np.int32)
KERNELS = [
    f"decoder.layers_{layer}.mlp.{name}.kernel" for layer in (0, 1) for name in ("wi_0", "wo")
]
# Of groups of two samples.
SETTINGS = ({}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8})


def sampled(engine, weights):
    """Name -> tokens and log-probs of eight samples, and log-probs of a canary."""
    prompts = zip(tiny_engine.prompts_of(3, 8, 5, 1), SETTINGS, strict=True)
    requests = [
        Prefill(
            prompt,
            (2 * number, 2 * number + 1),
            (10 * number, 10 * number + 1),
            SamplingParams(max_new_tokens=tiny_engine.NEW, **options),
        )
        for number, (prompt, options) in enumerate(prompts)
    ]
    engine.insert(weights, requests)
    samples = sorted(engine.decode(weights, 1000, False), key=lambda sample: sample.slot)
    return {
        "tokens": np.array([sample.tokens for sample in samples]),
        "logprobs": np.array([sample.logprobs for sample in samples]),
        "canary": engine.logprobs(weights, TOKENS),
    }


def main(directory: Path) -> None:
    assert jax.device_count() == 2
    half = tiny_engine.SLOTS // 2
    config = tiny_engine.configure(per_device_batch_size=half, ici_tensor_parallelism=2)
    engine = DecodeEngine(config, group_size=2, quantizes=True)
    like = engine.variables_like()
    whole = dict(np.load(directory / "weights.npz"))
    weights = {name: jax.device_put(array, like[name].sharding) for name, array in whole.items()}
    held = sum(array.addressable_shards[0].data.nbytes for array in weights.values())
    assert held == sum(array.nbytes for array in whole.values()) / 2
    found = sampled(engine, weights)
    engine.convert(weights)
    held = sum(weights[name].values.addressable_shards[0].data.nbytes for name in KERNELS)
    assert held == sum(whole[name].size for name in KERNELS) / 2
    np.savez(directory / "sampled.npz", **found, int8=engine.logprobs(weights, TOKENS))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_mesh_of_two_gives_the_samples_of_one_device(tmp_path, dense):
    np.savez(tmp_path / "weights.npz", **dense.weights)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, __file__, str(tmp_path)]
    subprocess.run(command, env=os.environ | flags, check=True, timeout=500)
    one, two = sampled(dense.engine, dense.weights), np.load(tmp_path / "sampled.npz")
    assert len({tuple(tokens) for tokens in one["tokens"]}) == 8
    np.testing.assert_array_equal(two["tokens"], one["tokens"])
    for name in ("logprobs", "canary"):
        np.testing.assert_allclose(two[name], one[name], rtol=0, atol=1e-4)
    model, weights = abstract_model(dense.config, "autoregressive"), dict(dense.weights)
    kernels = int8_weights.kernels(model, dense.config)
    int8_weights.convert(weights, kernels, dense.config.dtype)
    for name in kernels:
        weights[name] = weights[name].values * weights[name].scales
    expected = dense.engine.logprobs(weights, TOKENS)
    np.testing.assert_allclose(two["int8"], expected, rtol=0, atol=1e-4)
    assert np.abs(two["int8"] - one["canary"]).max() > 1e-3


def test_a_mesh_of_another_number_of_devices_is_an_error_that_names_the_keys():
    check_mesh({"ici_tensor_parallelism": 2}, 8)  # fsdp takes the rest
    check_mesh({"ici_tensor_parallelism": 2, "ici_fsdp_parallelism": 4}, 8)
    check_mesh({"ici_fsdp_parallelism": 8, "ici_data_parallelism": -1}, 8)
    with pytest.raises(ConfigError) as caught:  # the trainer's fsdp, and the worker's own tensor
        check_mesh({"ici_fsdp_parallelism": 8, "ici_tensor_parallelism": 2, "steps": 3}, 2)
    said = "mesh of 16 devices (ici_fsdp_parallelism=8, ici_tensor_parallelism=2), and this worker"
    assert "ici_fsdp_parallelism = 8" in str(caught.value) and said in str(caught.value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
