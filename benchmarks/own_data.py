"""Measures what ``rlax init --data`` and ``rlax train`` make of three tasks of reasoning-gym.

    python benchmarks/own_data.py DIRECTORY [TASK ...] [--seeds N] [-- KEY=VALUE ...]

It writes a task as JSON lines, as one's own data would be, lets ``rlax init`` write the config from
the data alone, trains, and prints pass@1 on the held-out questions before and after, the paired
difference with the verdict of the run, and seconds. A seed decides data, weights and sampling.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym

SIZE = 6000
_AS_WRITTEN = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True, slots=True)
class Task:
    """A task of reasoning-gym; ``short`` turns an entry into a question of a few bytes."""

    name: str
    options: Mapping[str, Any]
    short: Callable[[Mapping[str, Any]], str]


def _after_colon(entry: Mapping[str, Any]) -> str:
    return entry["question"].rpartition(": ")[2]


def _letter_and_text(entry: Mapping[str, Any]) -> str:
    letter, text = re.findall(r'"([^"]*)"', entry["question"])
    return f"{letter} in {text}?"


TASKS = {
    "sums": Task("chain_sum", {"max_terms": 2, "min_digits": 2, "max_digits": 2}, _after_colon),
    "letters": Task("letter_counting", {"min_words": 1, "max_words": 3}, _letter_and_text),
    "backward": Task("spell_backward", {"min_word_len": 3, "max_word_len": 5}, _after_colon),
}


def export(task: Task, path: Path, seed: int) -> None:
    """Writes the entries of a task as JSON lines."""
    entries = reasoning_gym.create_dataset(task.name, size=SIZE, seed=seed, **task.options)
    rows = ({"question": task.short(one), "answer": one["answer"]} for one in entries)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(task: str, seed: int, directory: Path, overrides: list[str]) -> None:
    """Trains on one task, and prints a line of a Markdown table."""
    name = f"{task}_{seed}"
    export(TASKS[task], directory / f"{name}.jsonl", seed)
    rlax = [sys.executable, "-m", "rlax_plugin"]
    seeds = [f"rlax.seed={seed}", f"init_weights_seed={seed}"]
    start_s = time.monotonic()
    for command in (
        ["init", f"{name}.yml", "--data", f"{name}.jsonl", "--force"],
        ["train", f"{name}.yml", *seeds, *overrides],
    ):
        subprocess.run([*rlax, *command], cwd=directory, check=True, timeout=7200)
    seconds = time.monotonic() - start_s
    summary = json.loads((directory / "runs" / name / "summary.json").read_text())
    before, after = (summary[f"pass_at_1_{when}"]["value"] for when in ("before", "after"))
    verdict = summary["verdict"]
    low, high = verdict["ci95"]
    print(
        f"| {task} | {seed} | {before:.3f} | {after:.3f} | {after - before:+.3f} "
        f"[{low:+.3f}, {high:+.3f}] | {verdict['outcome']} | {seconds:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AS_WRITTEN)
    parser.add_argument("directory", type=Path)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=1)
    own, overrides = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, overrides = own[:place], own[place + 1 :]
    given = parser.parse_args(own)
    for task in given.tasks or TASKS:
        for seed in range(1, given.seeds + 1):
            measure(task, seed, given.directory, overrides)


if __name__ == "__main__":
    main()
