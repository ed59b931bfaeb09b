"""Eight devices (fsdp x tensor) give one device's losses, gradients, weights and canary."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# Of 16 rows, two on each device.
MESH = ("per_device_batch_size=2", "ici_fsdp_parallelism=4", "ici_tensor_parallelism=2")


def three_steps(directory, *argv):
    """Name -> figure of a run with three objectives; its canary is of the first weights."""
    import test_equivalence as equivalence
    from rlax_maxtext.canary import CanaryForward

    from maxtext_overrides.trainer.train_loop import fresh_weights

    def canary(loop):
        tokens = np.random.default_rng(0).integers(0, equivalence.VOCAB, 9).astype(np.int32)
        found = CanaryForward(tokens)(loop, fresh_weights(loop))
        return {"canary": np.asarray(found.logprobs)}

    return equivalence.descend(directory, *argv, look=canary)


@pytest.mark.timeout(180)
def test_a_mesh_of_eight_gives_one_devices_figures(tmp_path):
    from test_equivalence import assert_same

    out = tmp_path / "mesh.npz"
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run(
        [sys.executable, __file__, str(tmp_path / "mesh"), str(out)],
        env=environment,
        check=True,
        timeout=150,
    )
    one = three_steps(tmp_path / "one", "per_device_batch_size=16")
    mesh = np.load(out)
    assert set(one) == set(mesh.files)
    np.testing.assert_allclose(mesh["canary"], one["canary"], rtol=0, atol=1e-5)
    assert_same(mesh, one, 3e-6)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    np.savez(sys.argv[2], **three_steps(Path(sys.argv[1]), *MESH))
