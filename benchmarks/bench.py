"""Compares the whole system with a bare loop, on the same cores at the same time (``make bench``).

The system is ``rlax train`` as a user would start it: a worker process, gRPC, the parameter server,
MaxText's loop, synchronous steps. The bare loop is ``bare_loop.py``. The two alternate, because
the speed of such machines drifts; the ratio of the medians is the figure to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
PHASES = ("wait_s", "generate_s", "reward_s", "train_s", "publish_on_loop_s", "publish_s")
STEPS = {"w1": (200, 100), "w2": (8, 4)}  # of the system, of the bare loop
SKIP = {"w1": 20, "w2": 2}  # first steps: compilation and warm caches
LIMITS = {"w1": 2.5, "w2": 1.3, "publish": 3.0}
DEADLINE_S = 1200


def machine() -> dict[str, Any]:
    """Returns a description of the machine and the software."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def bare(work: str) -> float:
    """Returns the median seconds of a step of the bare loop."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "bare.json"
        steps = str(STEPS[work][1])
        command = [sys.executable, str(HERE / "bare_loop.py"), "--work", work, "--steps", steps]
        subprocess.run(
            [*command, "--json", str(out)],
            check=True,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(out.read_text())["step_ms"]["median"] / 1e3


def system(work: str) -> dict[str, float]:
    """Returns the medians of a run's step and its phases, seconds."""
    # Weights travel through shared memory, as one would have it for workers on the same machine.
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="rlax-bench-", dir=shared))
    try:
        config = HERE.parent / "configs" / f"bench_{work}.yml"
        overrides = [f"base_output_directory={directory}", f"steps={STEPS[work][0]}"]
        subprocess.run(
            [sys.executable, "-m", "rlax_plugin", "train", str(config), *overrides],
            check=True,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
        )
        (metrics,) = directory.glob("*/metrics.jsonl")
        steps = [json.loads(line) for line in metrics.read_text().splitlines()][SKIP[work] :]
        names = ("step_s", *PHASES)
        return {n: statistics.median(s[f"time/{n}"] for s in steps) for n in names}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean, by Student's t."""
    from scipy.stats import t

    if len(values) < 2:
        return values[0], values[0]
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    middle = statistics.mean(values)
    return middle - half, middle + half


def measure(work: str, rounds: int) -> dict[str, Any]:
    turns = [(bare(work), system(work)) for _ in range(rounds)]
    middle = sorted(turns, key=lambda t: t[1]["step_s"] / t[0])[len(turns) // 2]
    ratios = [s["step_s"] / b for b, s in turns]
    return {
        "bare_s": middle[0],
        "system_s": middle[1]["step_s"],
        "ratio": middle[1]["step_s"] / middle[0],
        "interval": interval(ratios),
        "ratios": sorted(ratios),
        "limit": LIMITS[work],
        "phases": {k: v for k, v in middle[1].items() if k != "step_s"},
    }


def publish() -> dict[str, Any]:
    """Times publishing 512 MB to two readers, compared with one plain write and two plain reads."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "publish.json"
        subprocess.run(
            [sys.executable, str(HERE / "publish.py"), "--out", str(out)],
            check=True,
            timeout=DEADLINE_S,
        )
        return json.loads(out.read_text())


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['machine']['cpu']}, {result['machine']['cores']} cores")
    for column in ("work", "bare ms", "system ms", "ratio", "95 %", "limit", *PHASES):
        table.add_column(column, justify="right")
    for work in ("w1", "w2"):
        if found := result.get(work):
            phases = [f"{1e3 * found['phases'][p]:.1f}" for p in PHASES]
            table.add_row(
                work,
                f"{1e3 * found['bare_s']:.1f}",
                f"{1e3 * found['system_s']:.1f}",
                f"{found['ratio']:.2f}",
                "{:.2f} to {:.2f}".format(*found["interval"]),
                f"{found['limit']}",
                *phases,
            )
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["w1", "w2", "publish"], action="append")
    parser.add_argument("--rounds", type=int, default=3, help="turns of bare loop and system")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    chosen = args.only or ["w1", "w2", "publish"]
    result: dict[str, Any] = {"machine": machine()}
    for work in ("w1", "w2"):
        if work in chosen:
            result[work] = measure(work, args.rounds)
    if "publish" in chosen:
        result["publish"] = publish()
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
