"""Says where the processes of a run spend their time, thread by thread, by samples of their stacks.

The sampler is py-spy, which is not among the project's packages: ``pip install py-spy`` first. A
thread that waits is not counted. What XLA computes counts for the line that called it::

    python benchmarks/where_time_goes.py configs/bench_w1.yml steps=2000
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from bench import DEADLINE_S, machine

RESULTS = Path(__file__).parent / "results"
RATE = 200  # samples per second
_FRAME = re.compile(r"(?P<function>\S+) \((?P<file>.+?):(?P<line>\d+)\)$")


def steps_of(directory: Path) -> int:
    return sum(len(p.read_text().splitlines()) for p in directory.glob("*/metrics.jsonl"))


def record(processes: dict[str, int], seconds: int, directory: Path) -> dict[str, Path]:
    """Samples all processes at the same time; returns name -> file of stacks."""
    files = {name: directory / f"{name}.stacks" for name in processes}
    common = ["--threads", "--format", "raw", "--rate", str(RATE), "--duration", str(seconds)]
    running = [
        subprocess.Popen(
            ["py-spy", "record", *common, "--output", str(files[name]), "--pid", str(pid)],
            stdout=subprocess.DEVNULL,
        )
        for name, pid in processes.items()
    ]
    for one in running:
        if one.wait(DEADLINE_S):
            raise SystemExit(f"py-spy failed: {' '.join(map(str, one.args))}")
    return files


def summary(stacks: Path, seconds: int, most: int = 12) -> dict[str, Any]:
    """Returns, by thread, the share of the time in which it is busy, and its busiest lines.

    A line is the innermost one of this project, and behind ``>`` the innermost one of all.
    """
    busy: collections.Counter[str] = collections.Counter()
    lines: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for text in stacks.read_text().splitlines():
        stack, _, count = text.rpartition(" ")
        thread, *frames = stack.split(";")
        thread = re.sub(r"^thread \(\w+\): ?", "", thread).strip('"') or "thread"
        busy[thread] += int(count)
        own = [one for one in frames if re.search(r"\((rlax_|maxtext_overrides|plugins)", one)]
        where = _short(own[-1]) if own else "elsewhere"
        lines[thread][f"{where} > {_short(frames[-1])}" if frames else where] += int(count)
    every = RATE * seconds
    return {
        thread: {
            "busy": round(count / every, 3),
            "lines": {line: round(n / every, 3) for line, n in lines[thread].most_common(most)},
        }
        for thread, count in busy.most_common()
        if count / every >= 0.005
    }


def _short(frame: str) -> str:
    found = _FRAME.match(frame)
    return f"{Path(found['file']).name}:{found['function']}" if found else frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", help="keys of the config, as key=value")
    parser.add_argument("--skip", type=int, default=50, help="steps before the first sample")
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()
    if shutil.which("py-spy") is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")

    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="rlax-bench-", dir=shared))
    command = [sys.executable, "-m", "rlax_plugin", "train", str(args.config), *args.overrides]
    run = subprocess.Popen(
        [*command, f"base_output_directory={directory}"], stdout=subprocess.DEVNULL
    )
    try:
        end_s = time.monotonic() + DEADLINE_S
        while (before := steps_of(directory)) < args.skip:
            if run.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"the run has not made {args.skip} steps")
            time.sleep(0.2)
        children = psutil.Process(run.pid).children(recursive=True)
        workers = [one.pid for one in children if "serve" in one.cmdline()]
        processes = {"trainer": run.pid} | {f"worker {i}": pid for i, pid in enumerate(workers)}
        files = record(processes, args.seconds, directory)
        steps = steps_of(directory) - before
        result = {
            "config": args.config.name,
            "overrides": args.overrides,
            "machine": machine(),
            "steps": steps,
            "ms_per_step": round(1e3 * args.seconds / steps, 1),
            **{name: summary(file, args.seconds) for name, file in files.items()},
        }
    finally:
        run.terminate()
        run.wait(DEADLINE_S)
        shutil.rmtree(directory, ignore_errors=True)
    text = json.dumps(result, indent=1)
    print(text)
    (RESULTS / f"profile_{args.config.stem}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
