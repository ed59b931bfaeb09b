"""Measures which share of the weights a step changes, as they are and rounded to bfloat16.

The run must have kept its versions::

    rlax train configs/smollm2_largest.yml steps=10 rlax.weights.keep=20 run_name=changed
    python benchmarks/changed_weights.py runs/changed
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table
from rlax_orbax.store import OrbaxStore

from rlax_plugin.records.files import RunFiles
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.kept_versions import listed_versions
from rlax_plugin.weights.verification import read_weights

RESULTS = Path(__file__).parent / "results" / "changed_weights.jsonl"
Arrays = dict[str, np.ndarray]


def arrays_of(version: WeightVersion) -> Arrays:
    """Returns a version's arrays, flat."""
    like = {name: np.empty(spec.shape, spec.dtype) for name, spec in version.tensors.items()}
    arrays = read_weights(version, OrbaxStore(), like, fingerprint=None).arrays
    return {name: np.asarray(array).reshape(-1) for name, array in arrays.items()}


def rounded(array: np.ndarray) -> np.ndarray:
    """Returns the bits of an array in bfloat16."""
    return array.astype(ml_dtypes.bfloat16).view(np.uint16)


def delta_bytes(before: np.ndarray, after: np.ndarray) -> int:
    """Returns the size of the changed values and of the compressed gaps between their places."""
    places = np.flatnonzero(before != after)
    gaps = np.diff(places, prepend=0)
    width = np.uint8 if gaps.max(initial=0) < 256 else np.uint32
    return 2 * len(places) + len(zlib.compress(gaps.astype(width).tobytes(), 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="directory of the run")
    given = parser.parse_args()
    files = RunFiles(given.run)
    versions = sorted(
        listed_versions(files, files.location("weights")).versions, key=lambda v: v.version
    )
    table = Table("step", "changed", "changed in bfloat16", "bytes of a delta / of all")
    lines = []
    before = arrays_of(versions[0])
    values = sum(array.size for array in before.values())
    for version in versions[1:]:
        after = arrays_of(version)
        changed = rounded_changed = size = 0
        for name, array in after.items():
            old, new = rounded(before[name]), rounded(array)
            changed += int(np.sum(before[name] != array))
            rounded_changed += int(np.sum(old != new))
            size += delta_bytes(old, new)
        shares = [changed / values, rounded_changed / values, size / (2 * values)]
        names = ("changed", "changed_in_bfloat16", "delta_bytes")
        lines.append({"version": version.version, **dict(zip(names, shares, strict=True))})
        table.add_row(str(version.version), *(f"{share:.4f}" for share in shares))
        before = after
    Console(width=80).print(table)
    with RESULTS.open("a") as out:
        out.write(
            json.dumps({"run": Path(given.run).name, "values": values, "steps": lines}) + "\n"
        )


if __name__ == "__main__":
    main()
