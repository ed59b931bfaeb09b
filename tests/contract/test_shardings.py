"""Eight devices: neither what is saved nor its fingerprint depends on how arrays lie on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from rlax_orbax.store import OrbaxStore
from rlax_plugin.weights.device_fingerprint import fingerprint
from rlax_plugin.weights.fingerprint import fingerprint_numpy

assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))

# Saving launches no computation, and what is saved loads with any sharding.
value = np.random.default_rng(0).standard_normal((16, 8, 6)).astype(np.float32)
store = OrbaxStore()
specs = (P(), P("fsdp"), P("tensor", "fsdp"), P(None, ("fsdp", "tensor")))
shardings = [NamedSharding(mesh, s) for s in specs]
shardings.append(jax.sharding.SingleDeviceSharding(jax.devices()[5]))
sources = [jax.block_until_ready(jax.device_put(value, s)) for s in shardings]
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *a, **k: compiled.append(name) if "compile" in name else None)
for i, source in enumerate(sources):
    store.save(f"{sys.argv[1]}/{i}", {"w": source})
assert not compiled, compiled
for i in range(len(shardings)):
    for sharding in shardings:
        like = {"w": jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)}
        loaded = store.load(f"{sys.argv[1]}/{i}", like)["w"]
        assert loaded.sharding == sharding
        assert all((np.asarray(s.data) == value[s.index]).all() for s in loaded.addressable_shards)
print("loaded")

# The fingerprint is that of the host.
array = np.random.default_rng(0).standard_normal((16, 32, 256)).astype(np.float32)
expected = int(fingerprint_numpy({"w": array})["w"])
alone = fingerprint({"w": jax.device_put(array, jax.devices()[3])})
assert int(alone["w"]) == expected
for spec in (P(), P("fsdp"), P(None, "tensor"), P("tensor", None, "fsdp"),
             P(None, ("fsdp", "tensor")), P("fsdp", "tensor")):
    for dtype in (np.float32, jnp.bfloat16):
        value = array.astype(dtype)
        sharded = jax.device_put(value, NamedSharding(mesh, spec))
        assert int(fingerprint({"w": sharded})["w"]) == int(
            fingerprint_numpy({"w": value})["w"]), (spec, dtype)
assert compiled  # and so the listener above has heard of what is launched
print("equal")
"""


def test_shardings_change_neither_what_is_saved_nor_its_fingerprint(tmp_path: Path) -> None:
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded", "equal"]
