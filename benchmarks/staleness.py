"""Measures the effect of old samples on each objective: arithmetic, staleness bounds 1 and 16.

Whole runs of the demo's task (configs/demo.yml), all from one warm start, with several seeds. At a
bound of k with ``reload_every`` 1 the controller generates k steps ahead, so that in the long run
nearly every sample is k versions old when it trains. Finished runs are kept and not repeated: an
interrupted benchmark continues where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
CONFIG = HERE.parent / "configs" / "demo.yml"
BOUNDS = (1, 16)
RATE = 5e-4  # the demo's
DEADLINE_S = 3600

# Aggregation and advantage are the same in all, so that only the treatment of old samples differs.
_COMMON = (
    "rlax.objective.aggregation={name: token_mean}",
    "rlax.objective.advantage={name: group_normalised}",
)
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "uncorrected": ("rlax.objective.preset=grpo", "rlax.objective.allow_uncorrected=true"),
    "tis": (
        "rlax.objective.preset=grpo",
        "rlax.objective.old_policy=proximal",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    ),
    "decoupled_ppo": ("rlax.objective.preset=decoupled_ppo",),
    "aipo": ("rlax.objective.preset=aipo",),
}


@dataclass(frozen=True)
class Trial:
    """One run of the benchmark."""

    bound: int
    objective: str
    seed: int
    steps: int
    learning_rate: float
    config: Path = CONFIG

    @property
    def name(self) -> str:
        rate = "" if self.learning_rate == RATE else f"-rate{self.learning_rate:g}"
        return f"k{self.bound}-{self.objective}-seed{self.seed}-{self.steps}{rate}"

    def argv(self, directory: Path) -> list[str]:
        return [
            f"base_output_directory={directory}",
            f"run_name={self.name}",
            f"steps={self.steps}",
            f"checkpoint_period={self.steps}",
            f"learning_rate={self.learning_rate}",
            f"rlax.seed={self.seed}",
            f"rlax.staleness.max_staleness={self.bound}",
            "rlax.staleness.reload_every=1",
            # Every prompt trains: what differs is the objective alone.
            "rlax.curation.sampler={name: shuffled}",
            "rlax.curation.filters=[]",
            "rlax.launcher.workers=1",
            "rlax.evaluation.problems=512",
            "rlax.evaluation.samples=8",
            "rlax.evaluation.k=[1,8]",
            "rlax.trackers=[]",
            *_COMMON,
            *OBJECTIVES[self.objective],
        ]


def train(argv: Sequence[str], core: int | None = None, config: Path = CONFIG) -> None:
    """Runs ``rlax train``; its output goes to the run's own log."""
    environment = os.environ | {"TERM": "dumb"}
    command = [sys.executable, "-m", "rlax_plugin", "train", str(config), *argv]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    done = subprocess.run(
        command,
        env=environment,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[:2])} ended with {done.returncode}: {done.stderr}")


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
    return {
        "k": trial.bound,
        "objective": trial.objective,
        "seed": trial.seed,
        "pass@1_before": summary["pass_at_1_before"]["value"],
        "pass@1": summary["pass_at_1_after"]["value"],
        "pass@8": summary["pass_at_8_after"]["value"],
        "staleness_mean": statistics.mean(s["staleness/mean"] for s in steps),
        "staleness_max": summary["max_staleness_seen"],
        "step_s": statistics.median(s["time/step_s"] for s in steps),
        "learning_rate": trial.learning_rate,
        # The last steps train what was generated ahead: nothing is scored any more.
        "reward": [s["reward/mean"] for s in steps if s["curation/groups_scored"]],
        "effective_sample_size": [s.get("objective/effective_sample_size") for s in steps],
    }


def run_all(
    directory: Path, trials: Sequence[Any], jobs: int, finished: Callable[..., Any]
) -> None:
    """Runs the unfinished trials, ``jobs`` at a time, each on a core of its own.

    Args:
      trials: each has ``name``, ``config`` and ``argv``.
      finished: takes the directory and a trial; returns None if it is not finished.
    """
    warm = directory / "warm"
    console = Console()
    if not (warm / "summary.json").exists():
        console.print("the warm start that all runs share")
        train([f"base_output_directory={directory}", "run_name=warm", "steps=1"])
    cores = sorted(os.sched_getaffinity(0))
    left = [t for t in trials if finished(directory, t) is None]

    def one(numbered: tuple[int, Any]) -> None:
        number, trial = numbered
        began_s = time.perf_counter()
        shared = f"rlax.trainer.warm_start.directory={warm / 'prepared' / 'warm_start'}"
        core = cores[number % jobs % len(cores)] if jobs > 1 else None
        train([*trial.argv(directory), shared], core, trial.config)
        console.print(
            f"{number + 1} of {len(left)}: {trial.name} in {time.perf_counter() - began_s:.0f} s"
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, enumerate(left)))


def show(results: Sequence[dict[str, Any]]) -> None:
    table = Table(title="held-out pass@1 after training, in percent")
    for column in ("k", "objective", "staleness", "mean", "seeds", "pass@8", "step s"):
        table.add_column(column, justify="right")
    for bound in BOUNDS:
        for objective in OBJECTIVES:
            found = [r for r in results if (r["k"], r["objective"]) == (bound, objective)]
            if not found:
                continue
            table.add_row(
                str(bound),
                objective,
                f"{statistics.mean(r['staleness_mean'] for r in found):.1f}",
                f"{100 * statistics.mean(r['pass@1'] for r in found):.1f}",
                " ".join(f"{100 * r['pass@1']:.1f}" for r in found),
                f"{100 * statistics.mean(r['pass@8'] for r in found):.1f}",
                f"{statistics.median(r['step_s'] for r in found):.2f}",
            )
    Console(width=100).print(table)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plots the mean reward of each step's samples: seeds thin, their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    bounds = sorted({r["k"] for r in results})
    figure, axes = plt.subplots(1, len(bounds), figsize=(5 * len(bounds), 4), sharey=True)
    axes = np.atleast_1d(axes)
    for axis, bound in zip(axes, bounds, strict=True):
        for number, objective in enumerate(OBJECTIVES):
            curves = [
                np.convolve(r["reward"], np.ones(9) / 9, mode="valid")
                for r in results
                if (r["k"], r["objective"]) == (bound, objective)
            ]
            for curve in curves:
                axis.plot(curve, color=f"C{number}", alpha=0.25, linewidth=0.8)
            if curves:
                shortest = min(map(len, curves))
                mean = np.mean([curve[:shortest] for curve in curves], axis=0)
                axis.plot(mean, color=f"C{number}", linewidth=2, label=objective)
        axis.set_title(f"max_staleness {bound}")
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of right samples (mean of 9 steps)")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--bounds", type=int, nargs="+", choices=BOUNDS, default=BOUNDS)
    parser.add_argument("--learning-rate", type=float, default=RATE)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core for each")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also plot the curves into this file")
    args = parser.parse_args()
    directory = args.directory.absolute()
    trials = [
        Trial(k, o, s, args.steps, args.learning_rate)
        for s in range(args.seeds)
        for k in args.bounds
        for o in OBJECTIVES
    ]
    run_all(directory, trials, args.jobs, finished)
    results = [found for t in trials if (found := finished(directory, t))]
    show(results)
    if args.json:
        args.json.write_text(json.dumps({"steps": args.steps, "runs": results}) + "\n")
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
