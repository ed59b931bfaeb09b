"""Measures which share of the weights a step changes, once they are rounded to bfloat16.

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
from rlax_plugin.types import BASE, WeightVersion
from rlax_plugin.weights.kept_versions import listed_versions

RESULTS = Path(__file__).parent / "results" / "changed_weights.jsonl"
Rounded = dict[str, np.ndarray]


def rounded(version: WeightVersion) -> Rounded:
    """Returns the bits of a version's arrays in bfloat16."""
    (part,) = (part for part in version.parts if part.name == BASE)
    like = {name: np.empty(spec.shape, spec.dtype) for name, spec in part.tensors.items()}
    arrays = OrbaxStore().load(part.path, like)
    return {
        name: np.asarray(array).astype(ml_dtypes.bfloat16).view(np.uint16).reshape(-1)
        for name, array in arrays.items()
    }


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
    table = Table("step", "changed", "bytes of a delta / of all")
    lines = []
    before = rounded(versions[0])
    for version in versions[1:]:
        after = rounded(version)
        values = sum(array.size for array in after.values())
        changed = sum(int(np.sum(before[name] != after[name])) for name in after)
        size = sum(delta_bytes(before[name], after[name]) for name in after)
        lines.append({"version": version.version, "changed": changed / values})
        lines[-1]["bytes"] = size / (2 * values)
        table.add_row(str(version.version), f"{changed / values:.4f}", f"{lines[-1]['bytes']:.4f}")
        before = after
    Console(width=80).print(table)
    with RESULTS.open("a") as out:
        out.write(
            json.dumps({"run": Path(given.run).name, "values": values, "steps": lines}) + "\n"
        )


if __name__ == "__main__":
    main()
