"""Compares the whole system with two yardsticks, on the same cores in turns (``make bench``).

The system is ``rlax train`` as a user would start it, with synchronous steps: with the launcher
``local`` a worker process, gRPC and the parameter server, and with ``colocated`` the worker in the
trainer's process. The yardsticks are ``bare_loop.py``, without any framework, and
``alternation.py``, the same engine and MaxText's own step without a controller. All four alternate,
because the speed of such machines drifts; the ratios are the figures to look at.
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
YARDSTICKS, LAUNCHERS = ("bare_loop", "alternation"), ("local", "colocated")
STEPS = {"w1": (200, 100), "w2": (8, 4)}  # of the system, of a yardstick
SKIP = {"w1": 20, "w2": 2}  # first steps: compilation and warm caches
LIMITS = {"w1": 2.5, "w2": 1.3, "publish": 3.0}  # of local to the bare loop
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


def yardstick(name: str, work: str) -> float:
    """Returns the median seconds of a step of ``bare_loop`` or ``alternation``."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "figures.json"
        steps = str(STEPS[work][1])
        command = [sys.executable, str(HERE / f"{name}.py"), "--work", work, "--steps", steps]
        subprocess.run(
            [*command, "--json", str(out)],
            check=True,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(out.read_text())["step_ms"]["median"] / 1e3


def system(work: str, launcher: str) -> dict[str, float]:
    """Returns the medians of a run's step and its phases, seconds."""
    # Weights travel through shared memory, as one would have it for workers on the same machine.
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="rlax-bench-", dir=shared))
    try:
        config = HERE.parent / "configs" / f"bench_{work}.yml"
        overrides = [
            f"base_output_directory={directory}",
            f"steps={STEPS[work][0]}",
            f"rlax.launcher={{name: {launcher}}}",
        ]
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
    """Returns the medians of all turns, and the ratios of each system to the yardsticks."""
    floors: dict[str, list[float]] = {name: [] for name in YARDSTICKS}
    systems: dict[str, list[dict[str, float]]] = {name: [] for name in LAUNCHERS}
    for _ in range(rounds):
        for name, times in floors.items():
            times.append(yardstick(name, work))
        for name, runs in systems.items():
            runs.append(system(work, name))
    steps = floors | {name: [run["step_s"] for run in runs] for name, runs in systems.items()}
    compared = {name: to_yardsticks(steps, name) for name in steps if name != "bare_loop"}
    for name, runs in systems.items():
        compared[name]["phases"] = {
            phase: statistics.median(run[phase] for run in runs) for phase in PHASES
        }
    seconds = {f"{name}_s": statistics.median(times) for name, times in steps.items()}
    return {**seconds, "limit": LIMITS[work], **compared}


def to_yardsticks(steps: dict[str, list[float]], name: str) -> dict[str, Any]:
    """Returns the ratios of one loop to each yardstick but itself, turn by turn.

    Args:
      steps: loop -> seconds of a step in each turn.
    """
    found: dict[str, Any] = {}
    for floor in YARDSTICKS:
        if floor != name:
            ratios = [a / b for a, b in zip(steps[name], steps[floor], strict=True)]
            found[f"to_{floor}"] = {
                "ratio": statistics.median(ratios),
                "interval": interval(ratios),
                "ratios": sorted(ratios),
            }
    return found


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
    ratios = ("to bare", "95 %", "limit", "to alternation", "95 %")
    for column in ("work", "loop", "ms", *ratios, *(p.removesuffix("_s") for p in PHASES)):
        table.add_column(column, justify="right")
    for work in ("w1", "w2"):
        if work not in result:
            continue
        found = result[work]
        for name in (*YARDSTICKS, *LAUNCHERS):
            compared = found.get(name, {})
            to_bare, to_alternation = (ratio(compared.get(f"to_{y}")) for y in YARDSTICKS)
            limit = f"{found['limit']}" if name == "local" else ""
            phases = [f"{1e3 * s:.1f}" for s in compared.get("phases", {}).values()]
            step = f"{1e3 * found[f'{name}_s']:.1f}"
            table.add_row(work, name, step, *to_bare, limit, *to_alternation, *phases)
    Console(width=180).print(table)


def ratio(compared: dict[str, Any] | None) -> tuple[str, str]:
    """Returns a ratio and its interval in words; empty where there is none."""
    if compared is None:
        return "", ""
    return f"{compared['ratio']:.2f}", "{:.2f} to {:.2f}".format(*compared["interval"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["w1", "w2", "publish"], action="append")
    parser.add_argument("--rounds", type=int, default=3, help="turns of all four loops")
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
