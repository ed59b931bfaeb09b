"""Eight devices (fsdp x tensor) give one device's losses, gradients, weights and canary."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FIGURES = ("learning/loss", "learning/grad_norm", "logprob_sum", "learning/total_weights")
COMMON = ("opt_type=sgd", "learning_rate=1.0", "gradient_clipping_threshold=0.0")
MESH = ("per_device_batch_size=1", "ici_fsdp_parallelism=4", "ici_tensor_parallelism=2")


def two_steps(directory, *argv):
    """Metrics and final weights of two steps as name -> array, and the devices they were on."""
    import jax
    import test_train_loop as tests

    config = tests.configure(directory, *COMMON, *argv, steps=2)
    # MaxText's default generator draws other weights on another mesh.
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    recorder = tests.Recorder()
    tests.run_train_loop(
        config, recorder.events(), arrays=tests.ARRAYS, objective=tests.policy_gradient
    )
    found = {f"{key} {step}": recorder.metrics[step][key] for key in FIGURES for step in (1, 2)}
    weights = recorder.weights[2]
    found["canary"] = np.asarray(recorder.canaries[2].logprobs)
    assert all(len(value.sharding.device_set) == len(jax.devices()) for value in weights.values())
    return found | {name: np.asarray(value) for name, value in weights.items()}


@pytest.mark.timeout(180)
def test_a_mesh_of_eight_gives_one_devices_figures(tmp_path):
    out = tmp_path / "mesh.npz"
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run(
        [sys.executable, __file__, str(tmp_path / "mesh"), str(out)],
        env=environment,
        check=True,
        timeout=150,
    )
    one, mesh = two_steps(tmp_path / "one"), np.load(out)
    assert set(one) == set(mesh.files)
    np.testing.assert_allclose(mesh["canary"], one["canary"], rtol=0, atol=1e-5)
    for name, value in one.items():
        np.testing.assert_allclose(mesh[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    np.savez(sys.argv[2], **two_steps(Path(sys.argv[1]), *MESH))
