"""Says where the processes of a run spend their time, thread by thread, by samples of their stacks.

Each process looks at its own stacks a hundred times a second (``stack_sampler``). Threads that wait
are left out. What XLA computes counts for the line that called it::

    python benchmarks/where_time_goes.py configs/bench_w1.yml steps=3000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import DEADLINE_S, machine

HERE = Path(__file__).parent
MOST_LINES = 12


def steps_of(directory: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in directory.glob("*/metrics.jsonl"))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Returns, by thread, the share of the time in which it is busy, and its busiest lines."""
    result = {}
    for thread, lines in found["threads"].items():
        busy = sum(lines.values()) / found["samples"]
        shares = {line: round(count / found["samples"], 3) for line, count in lines.items()}
        most = sorted(shares.items(), key=lambda one: -one[1])[:MOST_LINES]
        if busy >= 0.005:
            result[thread] = {"busy": round(busy, 3), "lines": dict(most)}
    return dict(sorted(result.items(), key=lambda one: -one[1]["busy"]))


def profile(config: Path, overrides: list[str], skip: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of a run.

    Args:
      skip: number of steps before the first sample.
      seconds: for which it is sampled.
    """
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="rlax-bench-", dir=shared))
    command = [sys.executable, "-m", "rlax_plugin", "train", str(config), *overrides]
    run = subprocess.Popen(
        [*command, f"base_output_directory={directory}"],
        env=os.environ
        | {"RLAX_BENCH_STACKS": str(directory), "PYTHONPATH": str(HERE / "stack_sampler")},
        stdout=subprocess.DEVNULL,
    )
    end_s = time.monotonic() + DEADLINE_S

    def until(condition: Any, what: str) -> None:
        while not condition():
            if run.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"{what} did not happen")
            time.sleep(0.1)

    try:
        until(lambda: steps_of(directory) >= skip, f"{skip} steps")
        before = steps_of(directory)
        (directory / "go").write_text(str(seconds))
        time.sleep(seconds)
        steps = steps_of(directory) - before
        until(lambda: len(list(directory.glob("*-*.json"))) > 1, "an end of the samples")
        time.sleep(1)  # of all workers
        found = {
            path.stem.split("-")[0] + (f" {number}" if number > 1 else ""): summary(
                json.loads(path.read_text())
            )
            for number, path in enumerate(sorted(directory.glob("*-*.json")))
        }
    finally:
        run.terminate()
        run.wait(DEADLINE_S)
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "config": config.name,
        "overrides": overrides,
        "machine": machine(),
        "steps": steps,
        "ms_per_step": round(1e3 * seconds / max(steps, 1), 1),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", help="keys of the config, as key=value")
    parser.add_argument("--skip", type=int, default=50, help="steps before the first sample")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    result = profile(args.config, args.overrides, args.skip, args.seconds)
    text = json.dumps(result, indent=1)
    print(text)
    target = HERE / "results" / f"where_time_goes_{args.config.stem}.json"
    target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
