"""Publish-to-serving: times how long it takes until workers hold a new, verified version.

One process hands over (fingerprints of the fresh buffers, then a copy in memory or the store), the
others load, fingerprint the arrays on their device and compare. In the same run the lower limit is
measured: one plain write and as many plain reads as there are workers, one after the other. Run it
with nothing else on the machine::

    python benchmarks/publish.py                # 512 MiB to two workers, and the small model
    python benchmarks/publish.py --readers 4
    python benchmarks/publish.py --small        # the small model only
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("memory", "disk")
DEADLINE_S = 120.0
BIG = {f"decoder.layers.mlp.wi_{i}.kernel": ((4096, 1024), "bfloat16") for i in range(64)}
# Fifteen variables of a 2-layer, 64-wide model: 200 kB of float32.
SMALL = {
    "token_embedder.embedding": ((256, 64), "float32"),
    "decoder.decoder_norm.scale": ((64,), "float32"),
    "decoder.position_embedder.embedding": ((32, 64), "float32"),
} | {
    f"decoder.layers_{layer}.{name}": (shape, "float32")
    for layer in range(2)
    for name, shape in {
        "self_attention.qkv.kernel": (64, 48),
        "self_attention.out.kernel": (16, 64),
        "mlp.wi.kernel": (64, 128),
        "mlp.wo.kernel": (64, 64),
        "norm_1.scale": (64,),
        "norm_2.scale": (64,),
    }.items()
}

Spec = dict[str, tuple[tuple[int, ...], str]]


def nbytes(spec: Spec) -> int:
    import jax.numpy as jnp

    return sum(int(np.prod(shape)) * jnp.dtype(dtype).itemsize for shape, dtype in spec.values())


def random_arrays(spec: Spec) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    arrays = {
        name: jax.device_put(rng.standard_normal(shape, np.float32).astype(jnp.dtype(dtype)))
        for name, (shape, dtype) in spec.items()
    }
    return jax.block_until_ready(arrays)


def read_versions(connection: Connection, spec: Spec) -> None:
    """Acts as a worker: answers each (place, fingerprints) with the seconds of its phases."""
    import jax
    import jax.numpy as jnp
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.base.types import MemoryCopy
    from rlax_plugin.weights import memory_copies
    from rlax_plugin.weights.device_fingerprint import fingerprint

    store, here = OrbaxStore(), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {
        name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=here)
        for name, (shape, dtype) in spec.items()
    }
    zeros = {name: jnp.zeros(s.shape, s.dtype) for name, s in like.items()}
    jax.block_until_ready(fingerprint(zeros))  # compiles, as a worker's first version does
    del zeros
    connection.send("ready")
    while (job := connection.recv()) is not None:
        place, expected = job
        started = time.perf_counter()
        if isinstance(place, MemoryCopy):
            read = memory_copies.read(place, tensors(spec))
            arrays = jax.block_until_ready(memory_copies.on_devices(read, like))
        else:
            arrays = jax.block_until_ready(store.load(place, like))
        loaded = time.perf_counter()
        found = {name: int(value) for name, value in fingerprint(arrays).items()}
        verified = time.perf_counter()
        assert found == expected, "fingerprints differ"
        del arrays
        connection.send((loaded - started, verified - loaded))


def tensors(spec: Spec) -> dict[str, Any]:
    from rlax_plugin.base.types import TensorSpec

    return {name: TensorSpec(shape, dtype, 0) for name, (shape, dtype) in spec.items()}


def plain(directory: Path, size: int, readers: int) -> dict[str, float]:
    """Returns seconds of one plain write and some plain reads of a file, one after the other."""
    path, data = directory / "plain", np.random.default_rng(0).bytes(size)
    started = time.perf_counter()
    path.write_bytes(data)
    written = time.perf_counter()
    for _ in range(readers):
        path.read_bytes()
    ended = time.perf_counter()
    path.unlink()
    return {"write": written - started, "reads": ended - written, "total": ended - started}


def publish(
    directory: Path, spec: Spec, rounds: int, count: int
) -> dict[str, list[dict[str, float]]]:
    """Times rounds of fingerprint, hand over, load and verify.

    Args:
      rounds: of each way, in turns.
      count: number of workers.

    Returns:
      way -> seconds of each phase, by round.
    """
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.weights.device_fingerprint import fingerprint
    from rlax_plugin.weights.memory_copies import MemoryCopies

    context = mp.get_context("spawn")
    readers = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=read_versions, args=(theirs, spec), daemon=True)
        process.start()
        readers.append((process, ours))
    store, copies = OrbaxStore(), MemoryCopies(1 << 40)
    arrays = random_arrays(spec)
    {name: int(value) for name, value in fingerprint(arrays).items()}  # compiles
    for process, connection in readers:
        if not connection.poll(DEADLINE_S):
            raise TimeoutError(f"reader {process.pid} did not start")
        connection.recv()
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        floor = plain(directory, nbytes(spec), count)
        for way in WAYS:
            path = str(directory / f"version-{turn}")
            started = time.perf_counter()
            prints = {name: int(value) for name, value in fingerprint(arrays).items()}
            fingerprinted = time.perf_counter()
            place: Any = path
            if way == "disk":
                store.save(path, arrays)
            elif (place := copies.add(arrays)) is None:
                raise RuntimeError("this system has no memory that processes can share")
            saved = time.perf_counter()
            for _, connection in readers:
                connection.send((place, prints))
            phases = []
            for process, connection in readers:
                if not connection.poll(DEADLINE_S):
                    raise TimeoutError(f"reader {process.pid} did not answer")
                phases.append(connection.recv())
            ended = time.perf_counter()
            if way == "disk":
                store.delete(path)
            copies.close()
            results[way].append(
                {
                    "plain_write_s": floor["write"],
                    "plain_reads_s": floor["reads"],
                    "plain_s": floor["total"],
                    "fingerprint_s": fingerprinted - started,
                    "save_s": saved - fingerprinted,
                    "bytes": nbytes(spec),
                    "load_s": max(load for load, _ in phases),
                    "verify_s": max(verify for _, verify in phases),
                    "publish_to_serving_s": ended - started,
                    "ratio": (ended - started) / floor["total"],
                }
            )
    for process, connection in readers:
        connection.send(None)
        process.join(10)
    return results


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def latency_ms(directory: Path, rounds: int) -> dict[str, float]:
    """Returns medians for the small model, in one process, in milliseconds."""
    import jax
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.weights.device_fingerprint import fingerprint

    store, arrays = OrbaxStore(), random_arrays(SMALL)
    jax.block_until_ready(fingerprint(arrays))

    def median(work: Callable[[str], Any]) -> float:
        times = []
        for number in range(rounds):
            started = time.perf_counter()
            work(str(directory / f"small-{number}"))
            times.append(time.perf_counter() - started)
        return 1e3 * statistics.median(times)

    return {
        "fingerprint_ms": median(lambda _: jax.block_until_ready(fingerprint(arrays))),
        "save_ms": median(lambda path: store.save(path, arrays)),
        "load_ms": median(lambda path: jax.block_until_ready(store.load(path, arrays))),
        "delete_ms": median(store.delete),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="only the small model's latency")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", type=int, default=2, help="number of workers")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/publish.json"))
    args = parser.parse_args()
    directory = args.dir / f"rlax-publish-{os.getpid()}"
    directory.mkdir(parents=True)
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {args.dir}",
        "python": platform.python_version(),
    }
    try:
        report["small"] = latency_ms(directory, 20 * args.rounds)
        print(f"small model: {len(SMALL)} arrays, {nbytes(SMALL) / 1e3:.0f} kB (medians)")
        for name, value in report["small"].items():
            print(f"  {name.removesuffix('_ms'):24}{value:10.2f} ms")
        if not args.small:
            report["big"] = {"bytes": nbytes(BIG), "readers": args.readers}
            print(f"{nbytes(BIG) / 2**20:.0f} MiB in {len(BIG)} arrays, {args.readers} workers")
            found = publish(directory, BIG, args.rounds, args.readers)
            for way, rounds in found.items():
                middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
                report["big"][way] = {"rounds": rounds, "median": middle}
                print(f"by {way} (medians; ratio {spread([r['ratio'] for r in rounds])})")
                for name, value in middle.items():
                    unit = {"ratio": "x plain", "bytes": "bytes"}.get(name, "s")
                    print(f"  {name.removesuffix('_s'):24}{value:10.3f} {unit}")
    finally:
        shutil.rmtree(directory)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
