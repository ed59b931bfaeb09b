"""Trains for hours while workers are killed, and fits the growth of each process and directory.

    python benchmarks/soak.py CONFIG [KEY=VALUE ...] --minutes 60 --out DIR

One worker is killed each minute, in turn, but for the last one, which lives to the end; the run's
launcher starts the others again. Every ten seconds the memory, the open descriptors and the threads
of each process are read, and the bytes of each folder of the run.

A slope is in units per hour, with a 95 % interval. Of a process that lives to the end and of
folders it is that of six averages of equal duration after the first tenth of the time: figures
that are close in time are alike, and averages over ten minutes much less so. Waves that are longer
than that are not in the interval, so look at ``figures.jsonl`` before you trust a small slope. Of
workers, which are killed, it is the slope over the age of a process, after its first minute, in all
processes of a name together.

``excluded above`` is the largest growth that the interval leaves open. A line ends with GROWS if
the whole interval is above zero, and growth above 1 % of the mean an hour is possible.

Exit status 0: the run went on to the end. ``--from FILE`` computes the table of earlier figures.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.marks import Mark, lives, marks
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.start.run_directory import run_directory, state_directory

EVERY_S, KILL_S, START_S = 10.0, 60.0, 300.0
BLOCKS, WARM, YOUNG_S = 6, 0.1, 60.0

type Series = list[tuple[float, float]]


def slope(series: Series) -> tuple[float, float, float] | None:
    """Returns the mean of a series, its slope an hour, and half its 95 % interval."""
    points = np.asarray(series)
    points = points[points[:, 0] >= points[0, 0] + WARM * np.ptp(points[:, 0])]
    blocks = np.array_split(points, BLOCKS)
    if len(points) < 4 * BLOCKS:
        return None
    at, value = (np.asarray([block[:, axis].mean() for block in blocks]) for axis in (0, 1))
    line = stats.linregress(at / 3600, value)
    half = float(stats.t.ppf(0.975, BLOCKS - 2) * line.stderr) if np.ptp(value) else 0.0
    return float(value.mean()), float(line.slope), half


def slope_of_ages(lives: Sequence[Series]) -> tuple[float, float, float] | None:
    """Returns the mean, the slope an hour over the age, and half its 95 % interval.

    Args:
      lives: the figures of each process of a name. Each process has a level of its own, and its
        figures count as one observation of the slope.
    """
    slopes, values = [], []
    for life in lives:
        points = np.asarray([(at, value) for at, value in life if at >= life[0][0] + YOUNG_S])
        if len(points) < 3:
            continue
        values.append(points[:, 1].mean())
        slopes.append(np.polyfit(points[:, 0] / 3600, points[:, 1], 1)[0])
    if len(slopes) < 5:
        return None
    half = stats.t.ppf(0.975, len(slopes) - 1) * np.std(slopes, ddof=1) / len(slopes) ** 0.5
    return float(np.mean(values)), float(np.mean(slopes)), float(half)


def table(path: Path) -> Iterator[str]:
    """Returns the lines of the table of a file of figures."""
    read = defaultdict[str, dict[int, Series]](lambda: defaultdict(list))
    for line in path.read_text().splitlines():
        at, name, pid, key, value = json.loads(line)
        read[f"{name}: {key}"][pid].append((at, value))
    found = {
        name: slope_of_ages([*lives.values()]) if len(lives) > 1 else slope(*lives.values())
        for name, lives in read.items()
    }
    yield "figure: mean, slope an hour with its 95 % interval, growth excluded above"
    for name, one in sorted(found.items()):
        if one is None:
            yield f"{name}: too few figures"
            continue
        mean, per_hour, half = one
        grows = per_hour - half > 0 and per_hour + half > 0.01 * abs(mean)
        most = max(0.0, per_hour + half)
        said = f"{name}: {mean:.6g}, {per_hour:+.3g} +- {half:.2g}, {most:.3g}"
        yield said + ("  GROWS" if grows else "")


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
        for line in reversed(files.get("metrics.jsonl").splitlines()):
            with suppress(ValueError):  # the last line may be half written
                return int(json.loads(line)["step"])
    return 0


def kill(mark: Mark) -> None:
    """Kills exactly the process of a mark, if it lives."""
    with suppress(OSError):
        descriptor = os.pidfd_open(mark.pid)
        try:
            if lives(mark):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def watch(
    process: subprocess.Popen[bytes], state: Path, run: Path, until_s: float, out: Path
) -> int:
    """Reads the figures until the end, and kills a worker each minute; returns how many."""
    began_s, kill_at_s, kills = time.monotonic(), time.monotonic() + KILL_S, 0
    with (out / "figures.jsonl").open("w") as file:
        while time.monotonic() < until_s and process.poll() is None:
            now_s = time.monotonic() - began_s
            living = sorted((m for m in marks(state) if lives(m)), key=lambda m: (m.role, m.name))
            workers = [mark for mark in living if mark.role == "worker"]
            victim = workers[kills % (len(workers) - 1)] if len(workers) > 1 else None
            due = victim is not None and time.monotonic() >= kill_at_s
            for mark in living:
                name = f"{mark.role} {mark.name}".rstrip()
                for key, value in figures(mark).items():
                    file.write(json.dumps([now_s, name, mark.pid, key, value]) + "\n")
            for name, nbytes in (folders(run) | folders(state)).items():
                file.write(json.dumps([now_s, f"disk {name}", 0, "mib", nbytes / 2**20]) + "\n")
            file.flush()
            if due and victim is not None:
                kill(victim)
                kills, kill_at_s = kills + 1, time.monotonic() + KILL_S
            time.sleep(EVERY_S)
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?")
    parser.add_argument("--from", dest="earlier", type=Path, help="earlier figures.jsonl")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_intermixed_args()
    if arguments.earlier is not None:
        print("\n".join(table(arguments.earlier)))
        return 0
    arguments.out.mkdir(parents=True)
    overrides = [
        *("steps=100000000", "run_name=soak", f"base_output_directory={arguments.out}/runs"),
        *arguments.overrides,
    ]
    config = resolve(arguments.config, overrides)
    files = RunFiles(run_directory(config.maxtext))
    state = state_directory(config.section, files)
    command = [sys.executable, "-m", "rlax_plugin", "train", arguments.config, *overrides]
    command += ["--with-parent"]
    with (arguments.out / "trainer.out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until_s = time.monotonic() + START_S
        while steps(files) < 3 and process.poll() is None and time.monotonic() < until_s:
            time.sleep(1.0)
        first, began_s = steps(files), time.monotonic()
        until_s = began_s + 60 * arguments.minutes
        kills = watch(process, state, Path(files.location()), until_s, arguments.out)
        went_on, seconds = process.poll() is None, time.monotonic() - began_s
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
    last = steps(files)
    print(f"{seconds / 60:.0f} min, {last - first} steps, {kills} workers killed")
    print("\n".join(table(arguments.out / "figures.jsonl")))
    return 0 if went_on else 1


if __name__ == "__main__":
    sys.exit(main())
