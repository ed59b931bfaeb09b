"""A worker on a mesh of two devices samples what one on a single device samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import mesh_worker
import numpy as np
import pytest
from mesh_worker import SAMPLES, TOLERANCE
from rlax_jetstream.building import check_mesh
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Canary, TensorSpec
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.fingerprint import fingerprint_numpy


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mesh_of_two_gives_the_samples_of_one_device(tmp_path, dense):
    path = str(tmp_path / "version")
    whole = {name: np.asarray(array) for name, array in dense.weights.items()}
    OrbaxStore().save(path, dense.weights)
    tokens = np.arange(2, 11, dtype=np.int32)
    logprobs = dense.engine.logprobs(dense.weights, tokens)
    prints = {name: int(value) for name, value in fingerprint_numpy(whole).items()}
    tensors = {n: TensorSpec(a.shape, a.dtype.name, prints[n]) for n, a in whole.items()}
    described = {
        "path": path,
        "tokens": tokens.tolist(),
        "logprobs": logprobs.tolist(),
        "tensors": {n: (t.shape, t.dtype, t.fingerprint) for n, t in tensors.items()},
    }
    (tmp_path / "version.json").write_text(json.dumps(described))
    child = subprocess.Popen(
        [sys.executable, mesh_worker.__file__, str(tmp_path)],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    try:
        version = make_version(0, path, tensors, canary=Canary(tokens, logprobs, TOLERANCE))
        one = mesh_worker.generated(dense.engine, version)
        assert child.wait(500) == 0
    finally:
        child.kill()
        child.wait(60)
    nbytes = sum(array.nbytes for array in whole.values())
    assert len(one["tokens"]) == 4 * SAMPLES
    assert all(len(sample) == 12 for sample in one["tokens"])
    assert len({tuple(sample) for sample in one["tokens"]}) == 4 * SAMPLES
    two = json.loads((tmp_path / "found.json").read_text())
    assert two["devices"] == 2
    assert two["tokens"] == one["tokens"]
    for key in ("logprobs", "canary"):
        np.testing.assert_allclose(two[key], one[key], rtol=0, atol=TOLERANCE)
    assert two["bytes"] == one["bytes"] >= nbytes
    assert two["held"] == nbytes / 2


def test_a_mesh_of_another_number_of_devices_is_an_error_that_names_the_keys():
    check_mesh({"ici_tensor_parallelism": 2}, 8)  # fsdp takes the rest
    check_mesh({"ici_tensor_parallelism": 2, "ici_fsdp_parallelism": 4}, 8)
    check_mesh({"ici_fsdp_parallelism": 8, "ici_data_parallelism": -1}, 8)
    with pytest.raises(ConfigError) as caught:  # the trainer's fsdp, and the worker's own tensor
        check_mesh({"ici_fsdp_parallelism": 8, "ici_tensor_parallelism": 2, "steps": 3}, 2)
    said = "mesh of 16 devices (ici_fsdp_parallelism=8, ici_tensor_parallelism=2), and this worker"
    assert "ici_fsdp_parallelism = 8" in str(caught.value) and said in str(caught.value)
