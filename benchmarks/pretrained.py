"""Shows the gains of finished runs of a pretrained model, and the time of their steps by phase.

    make demo-smollm2
    .venv/bin/python benchmarks/pretrained.py runs/smollm2-largest-seed0 --json FILE --plot FILE

Reads the files that a run has written: its summary and the metrics of every step.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

PHASES = ("step", "wait", "generate", "train", "publish")
_SMOOTHED = 5  # steps


def read(run: Path) -> dict[str, Any]:
    """Returns the figures of one run.

    A step counts once: if a killed process had computed it as well, the last process counts.
    """
    summary = json.loads((run / "summary.json").read_text())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    by_step = {one["step"]: one for one in map(json.loads, lines) if "time/step_s" in one}
    steps = [by_step[number] for number in sorted(by_step)]
    return {
        "run": run.name,
        "steps": len(steps),
        "wall_s": round(summary["wall_s"], 1),
        "startup_s": round(summary["startup_s"], 1),
        "pass@1_before": summary["pass_at_1_before"],
        "pass@1": summary["pass_at_1_after"],
        "gap_p95": max(one["logprob_gap/p95"] for one in steps if "logprob_gap/p95" in one),
        "max_staleness": summary["max_staleness_seen"],
        "trainer_restarts": summary["trainer_restarts"],
        **{
            f"{phase}_s": {
                "median": round(statistics.median(values), 3),
                "least": round(min(values), 3),
            }
            for phase in PHASES
            if (values := [one[f"time/{phase}_s"] for one in steps[2:]])
        },
        "reward": [round(one["reward/mean"], 4) for one in steps if "reward/mean" in one],
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    table = Table(title="pass@1 on held-out problems, in percent; seconds per step: median (least)")
    names = ("run", "steps", "before", "after", "points", "wall s", *PHASES, "gap p95")
    for name in names:
        table.add_column(name, justify="left" if name == "run" else "right")
    for one in results:
        before, after = one["pass@1_before"], one["pass@1"]
        table.add_row(
            one["run"],
            str(one["steps"]),
            _measured(before),
            _measured(after),
            f"{100 * (after['value'] - before['value']):+.1f}",
            f"{one['wall_s']:.0f}",
            *(f"{one[f'{p}_s']['median']:.1f} ({one[f'{p}_s']['least']:.1f})" for p in PHASES),
            f"{one['gap_p95']:.1e}",
        )
    Console(width=140).print(table)


def _measured(one: dict[str, Any]) -> str:
    low, high = one["ci95"]
    return f"{100 * one['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plots the mean reward of each step's samples, one line for each run of more than a few steps.

    Samples are pooled, so where groups are screened, prompts whose first samples are equal count
    less, and the mean is higher than that of all prompts.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9.5, 4.5))
    for one in results:
        if len(one["reward"]) < 2 * _SMOOTHED:
            continue
        rewards = np.convolve(one["reward"], np.ones(_SMOOTHED) / _SMOOTHED, mode="valid")
        steps = np.arange(len(rewards)) + (_SMOOTHED + 1) / 2
        axis.plot(steps, rewards, label=one["run"], linewidth=1.5)
    axis.set_xlabel("step")
    axis.set_ylabel(f"share of right samples (mean of {_SMOOTHED} steps)")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def kept(path: Path) -> list[dict[str, Any]]:
    """Returns the figures that ``--json`` has written, whose runs may no longer exist."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="or a file that --json has written")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also plot the curves into this file")
    args = parser.parse_args()
    found = [one for run in args.runs for one in (kept(run) if run.is_file() else [read(run)])]
    results = list({one["run"]: one for one in found}.values())  # the last of a run counts
    show(results)
    if args.json:
        args.json.write_text("".join(json.dumps(one) + "\n" for one in results))
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
