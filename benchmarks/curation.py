"""Measures how many rollouts each curation method needs to reach a held-out pass rate.

    .venv/bin/python benchmarks/curation.py --json FILE --plot FILE
    .venv/bin/python benchmarks/curation.py --methods uniform --seeds 1

Of the training prompts, about 40 % are trivial for the model, 40 % hopeless, and 20 % have a pass
rate between (``curation_task.py``). All runs start from the weights of one warm start. A finished
run is kept and not repeated, and an interrupted one is continued by the same command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from curation_figures import HIGH, LOW, measured_cost, shares
from curation_runs import HELD_OUT, METHODS, STEPS, TARGETS, Place, Trial
from curation_task import PARTS, parts_by_id
from rich.console import Console
from rich.table import Table

from rlax_plugin.pass_rates.files import read_table

Result = dict[str, Any]


def show_start(start: Result) -> None:
    table = Table(title="pass rates of the training prompts after the warm start")
    for name in ("part", "prompts", "mean", f">= {HIGH:g}", "between", f"<= {LOW:g}"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part, one in start["shares"].items():
        columns = [f"{100 * one[n]:.1f} %" for n in ("pass_rate", "high", "between", "low")]
        table.add_row(part, str(one["prompts"]), *columns)
    Console(width=100).print(table)


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Returns the runs of each method that has some, in the order of ``METHODS``."""
    found = {name: [one for one in results if one["method"] == name] for name in METHODS}
    return {name: of for name, of in found.items() if of}


def show(results: Sequence[Result], target: float) -> None:
    """Prints the cost until the target, and the results at the end of the runs."""
    table = Table(title=f"until pass@1 of held-out {HELD_OUT} problems is {target:g}")
    columns = ("method", "seeds", "rollouts", "ratio", "tokens", "ratio", "steps")
    for name in (*columns, *(f"{part} at the end" for part in PARTS)):
        table.add_column(name, justify="left" if name == "method" else "right")
    uniform = summary([one for one in results if one["method"] == "uniform"], target)
    for name, found in by_method(results).items():
        own = summary(found, target)
        table.add_row(
            METHODS[name].title,
            f"{own['reached']} of {own['seeds']}",
            _spread(own["rollouts"]),
            _ratio(own["rollouts"], uniform["rollouts"]),
            _spread(own["tokens"]),
            _ratio(own["tokens"], uniform["tokens"]),
            _spread(own["steps"]),
            *(_spread([one["curve"][-1][part] for one in found], "{:.3f}") for part in PARTS),
        )
    Console(width=160).print(table)


def show_ratios(results: Sequence[Result], targets: Sequence[float]) -> None:
    """Prints the cost for several targets, to show if the order of the methods depends on them."""
    table = Table(title="rollouts until a target, over those of uniform")
    for name in ("method", *(f"{target:g}" for target in targets)):
        table.add_column(name, justify="left" if name == "method" else "right")
    uniform = [one for one in results if one["method"] == "uniform"]
    for name, found in by_method(results).items():
        ratios = (
            _ratio(*(summary(of, target)["rollouts"] for of in (found, uniform)))
            for target in targets
        )
        table.add_row(METHODS[name].title, *ratios)
    Console(width=100).print(table)


def summary(found: Sequence[Result], target: float) -> Result:
    """Returns the cost of a method's runs until the target.

    Returns:
      ``seeds`` and ``reached``, numbers of runs; ``rollouts``, ``tokens`` and ``steps``: one value
      for each run, or none at all if a run did not reach the target, whose mean would be too small.
    """
    costs = (one["to_target"][f"{target:g}"] for one in found)
    reached = [cost for cost in costs if cost]
    whole = len(reached) == len(found)
    names = ("rollouts", "tokens", "steps")
    values = {name: [one[name] for one in reached] if whole else [] for name in names}
    return {"seeds": len(found), "reached": len(reached)} | values


def _spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """Returns mean and range as text."""
    if not values:
        return "not reached"
    mean, low, high = (form.format(f(values)) for f in (statistics.mean, min, max))
    return f"{mean} ({low} to {high})" if len(values) > 1 else mean


def _ratio(values: Sequence[float], uniform: Sequence[float]) -> str:
    both = values and uniform
    return f"{statistics.mean(values) / statistics.mean(uniform):.2f}" if both else ""


def plot(results: Sequence[Result], target: float, path: Path) -> None:
    """Plots held-out pass@1 against rollouts: seeds thin, their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5))
    for number, (name, found) in enumerate(by_method(results).items()):
        curves = [
            tuple(np.array([one[key] for one in result["curve"]]) for key in ("rollouts", HELD_OUT))
            for result in found
        ]
        for rollouts, passed in curves:
            axis.plot(rollouts, passed, color=f"C{number}", alpha=0.3, linewidth=0.8)
        grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 100)
        mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
        axis.plot(grid, mean, color=f"C{number}", linewidth=2, label=METHODS[name].title)
    axis.axhline(target, color="gray", linewidth=0.8, linestyle="--")
    axis.set_xlabel("generated samples, those of the measurement included")
    axis.set_ylabel(f"pass@1 on held-out {HELD_OUT} problems")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def run_all(place: Place, trials: Sequence[Trial], told: Callable[[str], None]) -> None:
    """Runs the unfinished trials, one after the other."""
    left = [one for one in trials if not place.is_finished(one)]
    for number, trial in enumerate(left, start=1):
        began_s = time.perf_counter()
        place.train(trial)
        took_s = time.perf_counter() - began_s
        told(f"{number} of {len(left)}: {trial.name} in {took_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("runs/curation"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--targets", type=float, nargs="+", default=TARGETS, help="pass@1")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, as lines")
    parser.add_argument("--plot", type=Path, help="also plot the curves into this file")
    args = parser.parse_args()
    console = Console()
    place = Place(args.dir.absolute())
    place.prepare()
    rates = read_table(str(place.rates))
    start = {"shares": shares(rates, parts_by_id(place.prompts))}
    start["measured_rollouts"] = measured_cost(rates).rollouts
    show_start(start)
    trials = [Trial(name, seed, args.steps) for seed in range(args.seeds) for name in args.methods]
    run_all(place, trials, console.print)
    results = [place.result(one, args.targets) for one in trials]
    target = sorted(args.targets)[len(args.targets) // 2]
    show(results, target)
    show_ratios(results, args.targets)
    if args.json:
        args.json.write_text("".join(json.dumps(one) + "\n" for one in (start, *results)))
    if args.plot:
        plot(results, target, args.plot)


if __name__ == "__main__":
    main()
