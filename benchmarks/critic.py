"""Compares PPO with a critic (configs/demo_ppo.yml) with DAPO (configs/demo.yml) at equal samples.

Whole runs of the demo's task with several seeds, all from one warm start. DAPO rejects groups whose
rewards are all equal, so a step of it takes more samples; ``--steps`` are those of PPO, and DAPO
has ``--dapo-steps``, which should take about the same number of samples: the table has both.
Held-out problems are sampled as training goes on. Finished runs are kept and not repeated::

    python benchmarks/critic.py --seeds 6 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench import interval
from rich.console import Console
from rich.table import Table
from staleness import HERE, run_all

RESULTS = HERE / "results"
CONFIGS = {"ppo": HERE.parent / "configs/demo_ppo.yml", "dapo": HERE.parent / "configs/demo.yml"}
LAST = 20  # steps whose explained variance is averaged


@dataclass(frozen=True)
class Trial:
    """One run of the benchmark."""

    objective: str
    seed: int
    steps: int

    @property
    def config(self) -> Path:
        return CONFIGS[self.objective]

    @property
    def name(self) -> str:
        return f"{self.objective}-seed{self.seed}-{self.steps}"

    def argv(self, directory: Path) -> list[str]:
        return [
            f"base_output_directory={directory}",
            f"run_name={self.name}",
            f"steps={self.steps}",
            f"checkpoint_period={self.steps}",
            f"rlax.seed={self.seed}",
            f"rlax.evaluation.every={max(1, self.steps // 5)}",
            "rlax.evaluation.samples=8",
            "rlax.trackers=[]",
        ]


def finished(directory: Path, trial: Trial) -> dict[str, Any] | None:
    """Returns the figures of a finished run; None if it is not finished."""
    run = directory / trial.name
    try:
        summary = json.loads((run / "summary.json").read_text())
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return None
    if summary.get("pass_at_1_after") is None:
        return None
    steps = [json.loads(line) for line in lines]
    samples = np.cumsum([step["rollout/samples"] for step in steps])
    evaluations = [json.loads(path.read_text()) for path in (run / "evaluation").glob("*.json")]
    curve = sorted(
        (int(samples[min(one["step"], len(samples)) - 1]) if one["step"] else 0, value(one))
        for one in evaluations
    )
    named = "objective/explained_variance"  # not in a step whose returns are all equal
    explained = [step[named] for step in steps if named in step]
    return {
        "objective": trial.objective,
        "seed": trial.seed,
        "steps": len(steps),
        "samples": int(samples[-1]),
        "before": summary["pass_at_1_before"]["value"],
        "after": summary["pass_at_1_after"]["value"],
        "curve": curve,
        "explained_variance": explained,
        "step_s": statistics.median(step["time/step_s"] for step in steps),
        "train_s": statistics.median(step["time/train_s"] for step in steps),
    }


def value(evaluation: dict[str, Any]) -> float:
    return evaluation["pass_at_1"]["value"]


def last(run: dict[str, Any]) -> float:
    """Returns the explained variance at the end of a run."""
    return statistics.fmean(run["explained_variance"][-LAST:])


def show(results: Sequence[dict[str, Any]]) -> None:
    table = Table(title="held-out pass@1")
    names = ("objective", "seed", "steps", "samples", "before", "after", "explained", "step s")
    for name in names:
        table.add_column(name, justify="right")
    for run in sorted(results, key=lambda run: (run["objective"], run["seed"])):
        explained = f"{last(run):.3f}" if run["explained_variance"] else ""
        figures = (f"{run[name]:.3f}" for name in ("before", "after"))
        counts = (str(run[name]) for name in ("seed", "steps", "samples"))
        table.add_row(run["objective"], *counts, *figures, explained, f"{run['step_s']:.2f}")
    console = Console(width=100)
    console.print(table)
    after = {(run["objective"], run["seed"]): run["after"] for run in results}
    seeds = sorted({seed for _, seed in after})
    found = [
        after["ppo", s] - after["dapo", s]
        for s in seeds
        if {("ppo", s), ("dapo", s)} <= after.keys()
    ]
    if len(found) > 1:
        low, high = interval(found)
        console.print(f"PPO - DAPO: {statistics.fmean(found):+.3f} [{low:+.3f}, {high:+.3f}]")


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plots each run's pass@1 over its samples, and the explained variance of the critics."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for number, objective in enumerate(CONFIGS):
        for run in (run for run in results if run["objective"] == objective):
            label = objective if run["seed"] == 0 else None
            left.plot(*zip(*run["curve"], strict=True), f"C{number}", marker=".", label=label)
            if run["explained_variance"]:
                smooth = np.convolve(run["explained_variance"], np.ones(9) / 9, mode="valid")
                right.plot(smooth, color=f"C{number}", alpha=0.6)
    left.set(xlabel="samples", ylabel="held-out pass@1", title="PPO beside DAPO, one line a seed")
    right.set(xlabel="step", ylabel="explained variance (mean of 9 steps)", title="critics")
    left.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("runs/critic"))
    parser.add_argument("--steps", type=int, default=220, help="of PPO")
    parser.add_argument("--dapo-steps", type=int, default=137)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core for each")
    args = parser.parse_args()
    directory = args.directory.absolute()
    steps = {"ppo": args.steps, "dapo": args.dapo_steps}
    trials = [Trial(one, seed, steps[one]) for seed in range(args.seeds) for one in CONFIGS]
    run_all(directory, trials, args.jobs, finished)
    results = [found for trial in trials if (found := finished(directory, trial))]
    show(results)
    (RESULTS / "critic.json").write_text(json.dumps(results) + "\n")
    plot(results, RESULTS / "critic.png")


if __name__ == "__main__":
    main()
