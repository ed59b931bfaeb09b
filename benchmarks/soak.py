"""Trains for hours while workers are killed, and fits the growth of each process and directory.

    python benchmarks/soak.py CONFIG [KEY=VALUE ...] --minutes 60 --out DIR

One worker is killed each minute, in turn; the run's launcher starts it again. Every ten seconds
the memory, the open descriptors and the threads of each process are read, and the bytes of each
folder of the run. A slope is that of 20 averages after the first tenth of the time, in units per
hour, with its 95 % interval; for the killed workers, the figures before each kill count.

Exit status 0: the run went on to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

from rlax_plugin.config.loading import resolve
from rlax_plugin.liveness.marks import Mark, lives, marks
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.run_directory import run_directory, state_directory

EVERY_S, KILL_S, START_S = 10.0, 60.0, 300.0
BLOCKS, WARM = 20, 0.1

type Series = list[tuple[float, float]]


def slope(series: Series) -> tuple[float, float, float] | None:
    """Returns the mean of a series, its slope an hour, and half its 95 % interval."""
    points = np.asarray(series)
    points = points[points[:, 0] >= points[0, 0] + WARM * np.ptp(points[:, 0])]
    blocks = np.array_split(points, min(BLOCKS, len(points)))
    if len(blocks) < 4:
        return None
    at, value = (np.asarray([block[:, axis].mean() for block in blocks]) for axis in (0, 1))
    if not np.ptp(value):
        return float(value[0]), 0.0, 0.0
    line = stats.linregress(at / 3600, value)
    half = float(stats.t.ppf(0.975, len(blocks) - 2) * line.stderr)
    return float(value.mean()), float(line.slope), half


def figures(mark: Mark) -> dict[str, float]:
    """Returns the figures of a process; none if it has just ended."""
    with suppress(psutil.Error):
        process = psutil.Process(mark.pid)
        with process.oneshot():
            memory = process.memory_full_info()
            return {
                "memory_mib": memory.uss / 2**20,
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
            }
    return {}


def folders(directory: Path) -> dict[str, float]:
    """Returns the bytes of each folder of a run, and of its files."""
    found = defaultdict[str, float](float)
    for top, _, names in os.walk(directory):
        within = Path(top).relative_to(directory)
        for name in names:
            key = within.parts[0] + "/" if within.parts else name
            with suppress(OSError):
                found[key] += os.lstat(Path(top, name)).st_size
    return found


def steps(files: RunFiles) -> int:
    """Returns the number of the last step of a run."""
    with suppress(FileNotFoundError):
        lines = files.get("metrics.jsonl").splitlines()
        return int(json.loads(lines[-1])["step"]) if lines else 0
    return 0


def watch(process: subprocess.Popen[bytes], state: Path, run: Path, until_s: float, out: Path):
    """Reads the figures until the end, and kills a worker each minute."""
    series = defaultdict[str, Series](list)
    began_s, kill_at_s, kills = time.monotonic(), time.monotonic() + KILL_S, 0
    with (out / "figures.jsonl").open("w") as file:
        while time.monotonic() < until_s and process.poll() is None:
            now_s = time.monotonic() - began_s
            living = sorted((m for m in marks(state) if lives(m)), key=lambda m: (m.role, m.name))
            workers = [mark for mark in living if mark.role == "worker"]
            victim = workers[kills % len(workers)] if workers else None
            due = victim is not None and time.monotonic() >= kill_at_s
            for mark in living:
                name = f"{mark.role} {mark.name}".rstrip()
                for key, value in figures(mark).items():
                    if mark.role != "worker" or (due and mark == victim):
                        series[f"{name}: {key}"].append((now_s, value))
                    file.write(json.dumps([now_s, name, mark.pid, key, value]) + "\n")
            for name, nbytes in (folders(run) | folders(state)).items():
                series[f"disk {name}: mib"].append((now_s, nbytes / 2**20))
            file.flush()
            if due and victim is not None:
                os.kill(victim.pid, signal.SIGKILL)
                kills, kill_at_s = kills + 1, kill_at_s + KILL_S
            time.sleep(EVERY_S)
    return series, kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_intermixed_args()
    arguments.out.mkdir(parents=True)
    overrides = [
        *("steps=100000000", "run_name=soak", f"base_output_directory={arguments.out}/runs"),
        *arguments.overrides,
    ]
    config = resolve(arguments.config, overrides)
    files = RunFiles(run_directory(config.maxtext))
    state = state_directory(config.section, files)
    command = [sys.executable, "-m", "rlax_plugin", "train", arguments.config, *overrides]
    with (arguments.out / "trainer.out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until_s = time.monotonic() + START_S
        while steps(files) < 3 and process.poll() is None and time.monotonic() < until_s:
            time.sleep(1.0)
        first, began_s = steps(files), time.monotonic()
        until_s = began_s + 60 * arguments.minutes
        series, kills = watch(process, state, Path(files.location()), until_s, arguments.out)
        went_on, seconds = process.poll() is None, time.monotonic() - began_s
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
    last = steps(files)
    print(f"{seconds / 60:.0f} min, {last - first} steps, {kills} workers killed")
    print("figure: mean, slope an hour, 95 % interval")
    for name, points in sorted(series.items()):
        if len(points) >= 4 and (found := slope(points)) is not None:
            mean, per_hour, half = found
            flat = "" if abs(per_hour) > half and abs(per_hour) > 0.01 * abs(mean) else "  flat"
            print(f"{name}: {mean:.6g}, {per_hour:+.4g} +- {half:.2g}{flat}")
    return 0 if went_on else 1


if __name__ == "__main__":
    sys.exit(main())
