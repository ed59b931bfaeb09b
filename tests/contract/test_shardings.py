"""Eight devices: how arrays lie on them changes neither files nor fingerprints nor bytes read."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import math, sys
from pathlib import Path
import tensorstore as ts
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

# Each chunk is read once, also if several shards of this process need parts of it: the cache has
# room for one chunk at least.
def bytes_read():
    (metric,) = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(one["value"] for one in metric["values"])

rng = np.random.default_rng(1)
whole = {
    "kernel": rng.standard_normal((64, 48)).astype(np.float32),
    "half": rng.standard_normal((64, 48)).astype(jnp.bfloat16),
    "uneven": rng.standard_normal((24, 10)).astype(np.float32),
    "scale": rng.standard_normal(64).astype(np.float32),
    "mask": np.arange(64) % 3 == 0,
}
over_8 = NamedSharding(Mesh(np.array(jax.devices()), ("fsdp",)), P("fsdp"))
saved = {name: jax.device_put(value, over_8) for name, value in whole.items()}
path = f"{sys.argv[1]}/bytes"
OrbaxStore(chunk_bytes=512).save(path, saved)
chunks = [p for p in Path(path).rglob("*") if p.is_file() and "c" in p.relative_to(path).parts]
total = sum(p.stat().st_size for p in chunks)
assert total == sum(v.nbytes for v in whole.values()) + 4 * len(chunks)  # 4: the crc32c
two = Mesh(np.array(jax.devices()[:2]), ("tensor",))
six = Mesh(np.array(jax.devices()[:6]).reshape(3, 2), ("fsdp", "tensor"))
for in_flight in (1, 3000, 2 << 30):
    store = OrbaxStore(in_flight_bytes=in_flight)
    for other, spec in ((two, P(None, "tensor")), (two, P("tensor")), (two, P()),
                        (six, P("tensor")), (six, P("fsdp", "tensor"))):
        def fits(shape):
            return all(n % math.prod(other.shape[a] for a in ([axes] if axes else [])) == 0
                       for n, axes in zip(shape, spec))
        like = {
            n: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=NamedSharding(
                other, spec if v.ndim == len(spec) and fits(v.shape) else P()))
            for n, v in whole.items()}
        before = bytes_read()
        loaded = store.load(path, like)
        assert bytes_read() - before == total, (in_flight, spec, bytes_read() - before, total)
        for name, array in loaded.items():
            for shard in array.addressable_shards:
                expected = np.ascontiguousarray(whole[name][shard.index])
                assert np.asarray(shard.data).tobytes() == expected.tobytes(), (name, spec)
    halves = store.load(path, {n: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=NamedSharding(
        two, P(*[None] * (v.ndim - 1), "tensor"))) for n, v in whole.items()})
    for name, array in halves.items():
        assert [s.data.nbytes * 2 for s in array.addressable_shards] == [whole[name].nbytes] * 2
print("once")

# test_several_hosts has fingerprints of more shardings.
array = np.random.default_rng(0).standard_normal((16, 32, 256)).astype(jnp.bfloat16)
sharded = jax.device_put(array, NamedSharding(mesh, P("tensor", None, "fsdp")))
assert int(fingerprint({"w": sharded})["w"]) == int(fingerprint_numpy({"w": array})["w"])
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
    assert done.stdout.split() == ["loaded", "once", "equal"]
