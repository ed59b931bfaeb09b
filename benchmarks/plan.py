"""Compares what ``rlax plan`` predicts with what is measured, where it was not fitted to.

They are spread evenly over the plan's ranking. Finished runs are kept in the folder and not
repeated. The result is added to ``results/plan.jsonl``::

    python benchmarks/plan.py configs/bench_w1.yml rlax.rollouts.groups_per_step=32 \\
        per_device_batch_size=256 rlax.objective.preset=aipo --out /tmp/plan
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from rlax_plugin.commands.plan.calibrate import Calibration
from rlax_plugin.commands.plan.command import Wishes, make
from rlax_plugin.commands.plan.observed import WARM
from rlax_plugin.text.terminal import console, counting

RESULTS = Path(__file__).parent / "results" / "plan.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--workers", type=int, default=2, help="most workers")
    parser.add_argument("--others", type=int, default=9, help="number of arrangements to measure")
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    given = parser.parse_args()
    out = given.out.absolute()
    with counting(console(sys.stderr)) as tell:
        wishes = Wishes(given.workers, None, None, given.steps, str(out), tell)
        plan = make(given.config, given.overrides, wishes)
        fitted = {one.arrangement for one in plan.measured}
        others = [one for one in plan.ranked if one.arrangement not in fitted]
        places = np.linspace(0, len(others) - 1, min(given.others, len(others)))
        chosen = [others[round(place)] for place in places]
        if len(chosen) < 2:
            parser.error("the plan has fewer than two arrangements to measure")
        first = plan.measured[0].arrangement.name
        runs = Calibration(
            given.config, tuple(given.overrides), plan.rows, out, given.steps, WARM, tell, first
        )
        # In an order that has nothing to do with the prediction: machines grow slower and faster.
        measured = {}
        for i in np.random.default_rng(0).permutation(len(chosen)):
            measured[chosen[i].arrangement] = runs.measure(chosen[i].arrangement)
            print(f"measured {chosen[i].arrangement.name}", flush=True)
    predicted_s = [one.step_s for one in chosen]
    measured_s = [measured[one.arrangement].step_s for one in chosen]
    correlation, _ = map(float, spearmanr(predicted_s, measured_s))
    best = int(np.argmin(measured_s)) + 1
    table = Table("arrangement", "predicted s", "measured s", "limit")
    for one, seconds in zip(chosen, measured_s, strict=True):
        table.add_row(one.arrangement.name, f"{one.step_s:.3g}", f"{seconds:.3g}", one.limit)
    shown = Console(width=110)
    shown.print(table)
    shown.print(f"rank correlation {correlation:.2f}; the fastest is number {best} of the plan's")
    line = {
        "config": given.config,
        "overrides": given.overrides,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
        "correlation": correlation,
        "best": best,
        "predicted": [asdict(one) for one in chosen],
        "measured_s": measured_s,
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
