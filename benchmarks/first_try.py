"""Measures whether the first try of a new user makes the model better: recipes of ``rlax init``.

Each recipe is a command line of ``rlax init`` from the documentation, or one for a preset. All runs
start from one warm start. Before and after training, the pass rate of each held-out problem is
computed exactly: the probability that the model gives to the right answer at temperature 1, from
MaxText's own forward pass. The table has the difference paired by problem. Recipes marked
``sampled`` are also evaluated by the run itself, with 4 samples of each problem from the workers.

Finished runs are kept and not repeated: an interrupted benchmark continues where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

RESULTS = Path(__file__).parent / "results"
PROBLEMS = 2048  # held-out ones; a run of the documentation has 1000, and 1048 more to train on
DEADLINE_S = 3600
LEAST = -0.02  # lower bound of the difference that counts as no worse
SHORT = "--steps 20 --groups-per-step 16 --workers 1"
PRESETS = (
    "dapo",
    "grpo",
    "dr_grpo",
    "gspo",
    "gspo_token",
    "cispo",
    "aipo",
    "rloo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "topr",
    "ppo",
    "decoupled_ppo",
)


@dataclass(frozen=True)
class Recipe:
    """One way to start.

    Attributes:
      name: directory of its run.
      options: of ``rlax init``.
      sampled: True to let the run evaluate the same problems before and after training.
      overrides: of ``rlax train``.
    """

    name: str
    options: str
    sampled: bool = False
    overrides: tuple[str, ...] = ()


def recipes() -> Iterator[Recipe]:
    """Yields the recipes, the most important ones first."""
    yield Recipe("short-dapo", SHORT, sampled=True)
    yield Recipe("default-dapo", "--yes", sampled=True)
    yield Recipe("short-grpo", f"{SHORT} --preset grpo", sampled=True)
    yield Recipe("default-older", "--preset grpo --staleness 2")
    yield Recipe("default-grpo", "--preset grpo")
    for preset in PRESETS[2:]:
        yield Recipe(f"short-{preset}", f"{SHORT} --preset {preset}")
    for preset in PRESETS[2:]:
        yield Recipe(f"default-{preset}", f"--preset {preset}")
    # What was written for every size before.
    before = ("learning_rate=5e-4", "warmup_steps_fraction=0.0")
    yield Recipe("short-dapo-before", SHORT, sampled=True, overrides=before)
    yield Recipe("short-grpo-before", f"{SHORT} --preset grpo", overrides=before)


def rlax(directory: Path, *words: str) -> None:
    """Runs a command in the benchmark's directory.

    Raises:
      RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "rlax_plugin", *words],
        cwd=directory,
        env=os.environ | {"TERM": "dumb"},
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"rlax {words[0]} ended with {done.returncode}: {done.stderr[-4000:]}")


def run(directory: Path, recipe: Recipe) -> None:
    """Writes the recipe's config and trains with it, unless that has been done."""
    where = directory / "runs" / recipe.name
    if (where / "summary.json").exists():
        return
    config = f"{recipe.name}.yml"
    rlax(directory, "init", config, "--force", *shlex.split(recipe.options))
    evaluation = (
        [f"rlax.evaluation.problems={PROBLEMS}", "rlax.evaluation.samples=4"]
        if recipe.sampled
        else ["rlax.evaluation.problems=0"]
    )
    rlax(
        directory,
        "train",
        config,
        f"rlax.prompt_source.test_problems={PROBLEMS}",
        f"rlax.trainer.warm_start.directory={warm_start(directory)}",
        "rlax.evaluation.k=[1]",
        "rlax.evaluation.every=0",
        *evaluation,
        "rlax.trackers=[]",
        "rlax.deadlines.startup_s=900",  # on a busy machine
        *recipe.overrides,
    )


def warm_start(directory: Path) -> Path:
    """Returns the warm start that all runs share, after training it if there is none."""
    if not (directory / "runs" / "warm" / "summary.json").exists():
        rlax(directory, "init", "warm.yml", "--force", *shlex.split(SHORT))
        rlax(
            directory,
            "train",
            "warm.yml",
            "steps=1",
            f"rlax.prompt_source.test_problems={PROBLEMS}",
            "rlax.evaluation.problems=0",
            "rlax.trackers=[]",
            "rlax.deadlines.startup_s=900",
        )
    return directory / "runs" / "warm" / "prepared" / "warm_start"


class Rates:
    """Computes the exact pass rate of each held-out problem.

    Args:
      config: path of a config of the runs.
    """

    def __init__(self, config: Path):
        from maxtext_overrides.config.loading import load_to_check
        from maxtext_overrides.models.forward import EXACT
        from rlax_plugin.build import registry_for
        from rlax_plugin.config.loading import resolve
        from rlax_plugin.ports.protocols import BuildContext

        exact = [f"{key}={value}" for key, value in EXACT.items()]
        given = [f"rlax.prompt_source.test_problems={PROBLEMS}", *exact]
        resolved = resolve(str(config), given)
        section = resolved.section
        source = registry_for(section).part(
            "prompt_source",
            section.prompt_source,
            "rlax.prompt_source",
            BuildContext.outside_run(section, resolved),
        )
        self._config, length = load_to_check(resolved), section.row_tokens
        self._rows = []
        for prompt in source.prompts("test"):
            answer = np.asarray(source.answer_tokens(prompt))
            whole = np.concatenate((prompt.tokens, answer))
            first, last = len(prompt.tokens) - 1, len(whole) - 1
            # Rows of one length are one compiled program; what follows an answer changes nothing.
            padded = np.zeros(length, np.int32)
            padded[:last] = whole[:-1]
            self._rows.append((padded, np.arange(first, last), answer))

    def of(self, checkpoint: Path) -> np.ndarray:
        """Returns the pass rates under a checkpoint's weights, [problems]."""
        from maxtext_overrides.models.forward import Forward
        from maxtext_overrides.models.reading import Checkpoint

        forward = Forward(self._config, Checkpoint(str(checkpoint)))
        found = []
        for tokens, at, answer in self._rows:
            logits = forward(tokens, at).astype(np.float64)
            shifted = logits - logits.max(axis=1, keepdims=True)
            logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            found.append(float(np.exp(logprobs[np.arange(len(answer)), answer].sum())))
        return np.array(found)


def newest(checkpoints: Path) -> Path:
    """Returns the newest checkpoint in a directory."""
    return max(checkpoints.iterdir(), key=lambda path: int(path.name))


def figures(directory: Path, recipe: Recipe, rates: Rates, before: np.ndarray) -> dict[str, Any]:
    """Returns the figures of a finished run."""
    where = directory / "runs" / recipe.name
    after = rates.of(newest(where / "checkpoints"))
    difference = after - before
    half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    summary = json.loads((where / "summary.json").read_text())
    sampled = [summary.get(f"pass_at_1_{when}", {}).get("value") for when in ("before", "after")]
    written = yaml.safe_load((where / "config.yml").read_text())
    return {
        "recipe": recipe.name,
        "options": recipe.options,
        "overrides": list(recipe.overrides),
        "learning_rate": float(written["learning_rate"]),
        "problems": len(before),
        "before": round(float(before.mean()), 4),
        "after": round(float(after.mean()), 4),
        "difference": round(float(difference.mean()), 4),
        "low": round(float(difference.mean() - half), 4),
        "high": round(float(difference.mean() + half), 4),
        "sampled": sampled if recipe.sampled else None,
        "wall_s": round(summary["wall_s"]),
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns the results as Markdown."""
    lines = [
        "| options of `rlax init` | learning rate | before | after | difference | 95 % interval | "
        "sampled | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in results:
        options = " ".join((one["options"], *one["overrides"]))
        sampled = " -> ".join(f"{x:.3f}" for x in one["sampled"]) if one["sampled"] else ""
        verdict = "no worse" if one["low"] >= LEAST else "worse"
        lines.append(
            f"| `{options}` | {one['learning_rate']:g} | {one['before']:.3f} | {one['after']:.3f} "
            f"| {one['difference']:+.3f} | [{one['low']:+.3f}, {one['high']:+.3f}] | {sampled} "
            f"| {verdict} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("runs/first_try"))
    parser.add_argument("--only", nargs="+", help="names of recipes; default: all")
    parser.add_argument("--list", action="store_true", help="print the recipes, run nothing")
    parser.add_argument("--show", action="store_true", help="only the runs that have ended")
    parser.add_argument("--out", type=Path, default=RESULTS / "first_try.jsonl")
    args = parser.parse_args()
    chosen = [one for one in recipes() if not args.only or one.name in args.only]
    if args.list:
        print("\n".join(f"{one.name:40} rlax init {one.options}" for one in chosen))
        return
    directory = args.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    known: dict[str, dict[str, Any]] = {}
    if args.out.exists():
        known = {one["recipe"]: one for one in map(json.loads, args.out.read_text().splitlines())}
    warm = newest(warm_start(directory) / "checkpoints")
    rates = Rates(directory / "warm.yml")
    before = rates.of(warm)
    for recipe in chosen:
        if recipe.name in known:
            continue
        if args.show and not (directory / "runs" / recipe.name / "summary.json").exists():
            continue
        run(directory, recipe)
        known[recipe.name] = figures(directory, recipe, rates, before)
        results = [known[one.name] for one in recipes() if one.name in known]
        args.out.write_text("".join(f"{json.dumps(one)}\n" for one in results))
        args.out.with_suffix(".md").write_text(table(results))
        print(json.dumps(known[recipe.name]), flush=True)


if __name__ == "__main__":
    main()
