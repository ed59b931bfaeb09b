"""Times the fingerprint of one weight version: 1 GB in 64 arrays, bfloat16 and float32.

It is computed on the device as in trainer and workers, and on the host by the definition, which
tests and tools use. The first call, which compiles, is reported apart::

    taskset -c 0 python benchmarks/fingerprint.py       # one core
    python benchmarks/fingerprint.py --gigabytes 4
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS = 64
DTYPES = ("bfloat16", "float32")


def random_arrays(dtype: str, nbytes: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    columns = 1024
    rows = nbytes // ARRAYS // columns // jnp.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    return jax.block_until_ready(
        {
            f"decoder.layers_{i}.mlp.wi.kernel": jax.device_put(
                rng.standard_normal((rows, columns), np.float32).astype(jnp.dtype(dtype))
            )
            for i in range(ARRAYS)
        }
    )


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(dtype: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """Returns seconds of the first call, of each later one, and their median."""
    import jax

    from rlax_plugin.weights.device_fingerprint import fingerprint
    from rlax_plugin.weights.fingerprint import fingerprint_numpy

    arrays = random_arrays(dtype, nbytes)
    first_s = seconds(lambda: jax.block_until_ready(fingerprint(arrays)))
    device_s = [seconds(lambda: jax.block_until_ready(fingerprint(arrays))) for _ in range(rounds)]
    on_host = {name: np.asarray(array) for name, array in arrays.items()}
    return {
        "bytes": sum(array.nbytes for array in on_host.values()),
        "first_s": first_s,
        "device_s": device_s,
        "device_median_s": statistics.median(device_s),
        "host_s": seconds(lambda: fingerprint_numpy(on_host)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fingerprint.json"))
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {cores} cores",
        "python": platform.python_version(),
    }
    print(f"{args.gigabytes:g} GB in {ARRAYS} arrays, {cores} cores (median of {args.rounds})")
    for dtype in DTYPES:
        found = report[dtype] = measure(dtype, int(args.gigabytes * 1e9), args.rounds)
        print(
            f"  {dtype:10}{found['device_median_s']:8.3f} s, first {found['first_s']:.2f} s, "
            f"on the host by the definition {found['host_s']:.2f} s"
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
