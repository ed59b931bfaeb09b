"""Times steps whose samples are generated beside training, with shared and with separate cores.

The arrangements take turns: with ``max_staleness`` 1, where a step generates and then trains; with
a larger one on shared cores; and with one core for the trainer and the others for workers. Busy
times are those of the run's timeline (``spans.jsonl``). Run it with nothing else on the machine::

    python benchmarks/overlap.py configs/bench_w1.yml rlax.objective.preset=aipo --rounds 10
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench import DEADLINE_S, interval, machine
from rich.console import Console
from rich.table import Table

from rlax_plugin.metrics.spans import TRAINER, Span, StepOfSpans, merged, read

RESULTS = Path(__file__).parent / "results" / "overlap.jsonl"
BESIDE = "rlax.staleness.max_staleness=2"
WAYS: dict[str, tuple[str, ...]] = {
    "one after the other": ("rlax.staleness.max_staleness=1",),
    "beside, shared cores": (BESIDE,),
    "beside, separate cores": (BESIDE, "rlax.launcher.trainer_threads=1"),
}


def busy_s(steps: list[StepOfSpans], chosen: Callable[[Span], bool]) -> float:
    """Returns for how long a step has at least one of the chosen spans, on average."""
    found = merged(((s.began_s, s.ended_s) for one in steps for s in one.spans if chosen(s)), 10**9)
    return sum(ended - began for began, ended in found) / len(steps)


def trains(span: Span) -> bool:
    return span.lane == TRAINER and not span.activity.startswith("waits for")


def run(config: str, overrides: list[str], steps: int, skip: int) -> dict[str, float]:
    """Returns the mean seconds of a step, of its training and of its generation."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="rlax-overlap-", dir=shared))
    try:
        command = [sys.executable, "-m", "rlax_plugin", "train", config, f"steps={steps}"]
        subprocess.run(
            [*command, f"base_output_directory={directory}", *overrides],
            check=True,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
        )
        (spans,) = directory.glob("*/spans.jsonl")
        # The last step trains what was generated before: nothing is generated beside it.
        timed = read(spans.read_bytes())[skip:-1]
        workers = {s.lane for one in timed for s in one.spans if s.lane.startswith("worker ")}
        generate_s = [
            busy_s(timed, lambda s, lane=lane: s.lane == lane and s.activity == "generates")
            for lane in workers
        ]
        return {
            "step_s": (timed[-1].ended_s - timed[0].began_s) / len(timed),
            "train_s": busy_s(timed, trains),
            "generate_s": statistics.mean(generate_s),
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--skip", type=int, default=20, help="first steps that are not timed")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    turns: list[dict[str, dict[str, float]]] = []
    for turn in range(given.rounds):
        order = np.random.default_rng(turn).permutation(list(WAYS))
        turns.append(
            {
                str(way): run(given.config, [*given.overrides, *WAYS[way]], given.steps, given.skip)
                for way in order
            }
        )
        print(f"turn {turn + 1} of {given.rounds}", flush=True)
    table = Table("arrangement", "step s", "train s", "generate s", "step / longer", "step / sum")
    line = {"machine": machine(), "config": given.config, "overrides": given.overrides, "ways": {}}
    for way in WAYS:
        found = [one[way] for one in turns]
        to_longer = [f["step_s"] / max(f["train_s"], f["generate_s"]) for f in found]
        # The sum is that of the same turn's run in which one follows the other.
        first = next(iter(WAYS))
        to_sum = [
            f["step_s"] / (one[first]["train_s"] + one[first]["generate_s"])
            for f, one in zip(found, turns, strict=True)
        ]
        middle = {k: statistics.median(f[k] for f in found) for k in found[0]}
        ratios = {"to_longer": to_longer, "to_sum": to_sum}
        line["ways"][way] = {**middle, **{k: interval(v) for k, v in ratios.items()}}
        table.add_row(
            way,
            *(f"{1e3 * value:.1f} ms" for value in middle.values()),
            *(
                f"{statistics.mean(v):.2f} {interval(v)[0]:.2f}..{interval(v)[1]:.2f}"
                for v in ratios.values()
            ),
        )
    Console(width=130).print(table)
    with RESULTS.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
