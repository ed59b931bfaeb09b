"""``python writing_host.py NUMBER PORT``: one of two hosts that write weight versions together.

It executes the commands that it reads from stdin, one JSON list each, and answers in JSON.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

DEVICES = 4  # of each host
# name -> shape, dtype, and the mesh axes ("host", "device") over which each axis is sharded
SPECS: dict[str, tuple[tuple[int, ...], Any, tuple[Any, ...]]] = {
    "both.kernel": ((16, 8, 6), np.float32, (("host", "device"),)),
    "crossed": ((8, 6), ml_dtypes.bfloat16, ("device", "host")),
    "last_axis": ((3, 1024), np.float32, (None, ("device", "host"))),
    "within_a_host": ((5, 4), np.float32, (None, "device")),
    "replicated": ((7,), np.int32, ()),
    "mask": ((8,), np.bool_, ("host",)),
    "scalar": ((), np.float32, ()),
}
# Only host 1 has a device that holds this one; no computation takes it together with the others.
# Its axes are odd, so it is one chunk, of 133 kB.
ELSEWHERE = "elsewhere"


def values() -> dict[str, np.ndarray]:
    """The arrays as a whole: bits of every kind, some values equal to the fill value."""
    rng = np.random.default_rng(0)
    drawn = {n: rng.standard_normal(shape).astype(t) for n, (shape, t, _) in SPECS.items()}
    drawn["mask"] = np.arange(8) % 3 == 0
    drawn["replicated"] = np.arange(-3, 4, dtype=np.int32)
    return drawn | {ELSEWHERE: np.arange(33333, dtype=np.float32).reshape(3, 11111)}


def main(number: int, port: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo writes to stdout

    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        2,
        number,
        initialization_timeout=60,
        coordinator_bind_address=f"127.0.0.1:{port}" if number == 0 else None,
    )
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.base.errors import WeightsError
    from rlax_plugin.weights.device_fingerprint import fingerprint
    from rlax_plugin.weights.host_arrays import on_this_host

    devices = np.array(jax.devices()).reshape(2, DEVICES)
    mesh = Mesh(devices, ("host", "device"))
    whole = values()

    def placed(name: str, sharding: Any) -> Any:
        return jax.make_array_from_callback(whole[name].shape, sharding, whole[name].__getitem__)

    arrays = {n: placed(n, NamedSharding(mesh, PartitionSpec(*s[2]))) for n, s in SPECS.items()}
    shared = dict(arrays)
    there = jax.sharding.SingleDeviceSharding(devices[1, 2])
    mine = [jax.device_put(whole[ELSEWHERE], there)] if number == 1 else []
    arrays[ELSEWHERE] = jax.make_array_from_single_device_arrays(
        whole[ELSEWHERE].shape, there, mine, dtype=whole[ELSEWHERE].dtype
    )
    # Chunks are smaller than shards, so that a host writes several chunks of an array.
    store = OrbaxStore(deadline_s=60, chunk_bytes=256)

    def fingerprints() -> dict[str, int]:
        prints = fingerprint(shared)
        assert all(a.is_fully_replicated and a.dtype == np.uint32 for a in prints.values())
        return {name: int(value) for name, value in prints.items()}

    def load(path: str, across: list[str]) -> int:
        """Loads with another sharding; returns the number of correct shards on this host."""
        other = Mesh(devices.reshape(4, 2) if across else devices[number], across or ["device"])
        axes = {n: tuple(across) or ("device",) for n, s in SPECS.items() if s[0][:1] == (16,)}
        like = {
            n: jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=NamedSharding(other, PartitionSpec(*axes.get(n, ())))
            )
            for n, a in whole.items()
        }
        loaded = store.load(path, like)
        shards = [(n, shard) for n, a in loaded.items() for shard in a.addressable_shards]
        for name, shard in shards:
            assert np.asarray(shard.data).tobytes() == whole[name][shard.index].tobytes(), name
        return len(shards)

    def here(order: list[int]) -> int:
        """Has both hosts take all arrays; returns the elements that this host's devices hold.

        Args:
          order: of the devices in the arrays' mesh.
        """
        axes = Mesh(devices.flat[order].reshape(devices.shape), ("host", "device"))
        across = {n: NamedSharding(axes, PartitionSpec(*s[2])) for n, s in SPECS.items()}
        found = on_this_host({n: placed(n, sharding) for n, sharding in across.items()})
        assert found.keys() == shared.keys()
        own = set(devices[number])
        for name, array in found.items():
            assert array.is_fully_addressable and array.sharding.device_set == own, name
            assert np.asarray(array).tobytes() == whole[name].tobytes(), name
        return sum(s.data.size for array in found.values() for s in array.addressable_shards)

    commands: dict[str, Callable[..., Any]] = {
        "begin": lambda path: store.begin(path, arrays),
        "write": lambda directory: store.write(directory, arrays),
        "commit": lambda path, *rest: store.commit(path, rest[0], arrays, rest[1]),
        "abandon": store.abandon,
        "fingerprints": fingerprints,
        "here": here,
        "load": load,
    }
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = commands[command](*arguments)
        except WeightsError as error:
            answer = {type(error).__name__: str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
