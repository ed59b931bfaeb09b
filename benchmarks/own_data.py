"""Measures what ``rlax init --data`` and ``rlax train`` make of three tasks of reasoning-gym.

    python benchmarks/own_data.py DIRECTORY [TASK ...] [-- KEY=VALUE ...]

It writes a task as JSON lines, as one's own data would be, lets ``rlax init`` write the config from
the data alone, trains, and prints pass@1 on the held-out questions before and after, and seconds.
"""

from __future__ import annotations

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

SIZE, SEED = 6000, 1


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


def export(task: Task, path: Path) -> None:
    """Writes the entries of a task as JSON lines."""
    entries = reasoning_gym.create_dataset(task.name, size=SIZE, seed=SEED, **task.options)
    rows = ({"question": task.short(one), "answer": one["answer"]} for one in entries)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(name: str, directory: Path, overrides: list[str]) -> None:
    """Trains on one task, and prints a line of a Markdown table."""
    export(TASKS[name], directory / f"{name}.jsonl")
    rlax = [sys.executable, "-m", "rlax_plugin"]
    start_s = time.monotonic()
    for command in (
        ["init", f"{name}.yml", "--data", f"{name}.jsonl", "--force"],
        ["train", f"{name}.yml", *overrides],
    ):
        subprocess.run([*rlax, *command], cwd=directory, check=True, timeout=7200)
    seconds = time.monotonic() - start_s
    summary = json.loads((directory / "runs" / name / "summary.json").read_text())
    before, after = (summary[f"pass_at_1_{when}"]["value"] for when in ("before", "after"))
    print(f"| {name} | {before:.3f} | {after:.3f} | {seconds:.0f} |", flush=True)


def main() -> None:
    directory, *rest = sys.argv[1:]
    names, overrides = rest, []
    if "--" in rest:
        place = rest.index("--")
        names, overrides = rest[:place], rest[place + 1 :]
    for name in names or TASKS:
        measure(name, Path(directory), overrides)


if __name__ == "__main__":
    main()
