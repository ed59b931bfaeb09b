"""The prompts of ``curation.py``: arithmetic in three parts, of which one is worth training on.

A model of the demo's size first learns the warm-up prompts by supervised training. For this model
the parts are

- trivial: a two-digit number and a one-digit number without a carry, ``34+05=`` or ``05+34=``.
  The warm-up has all that are trained on.
- learnable: two two-digit numbers, ``37+58=``. The warm-up has others of
  this kind.
- hopeless: products of two two-digit numbers, ``37*58=``. The warm-up has none.

One-digit numbers are written with two digits, because the model has learned positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rlax_arithmetic.problems import ProblemSet

from rlax_plugin.prompts.text_source import prompt_id

PARTS = ("trivial", "learnable", "hopeless")
TRIVIAL_TIMES = 8  # how often the warm start has each trivial prompt for one learnable one
STOPPING = 512  # learnable problems that decide when the warm start ends
Problem = tuple[str, str]


@dataclass(frozen=True)
class Sizes:
    """The numbers of prompts.

    Attributes:
      train: training prompts of each part.
      held_out: evaluation prompts of each part; one more if a mirrored pair would be divided.
      warm_up: learnable prompts that the warm start trains on, in addition to all trivial ones.
    """

    train: dict[str, int]
    held_out: dict[str, int]
    warm_up: int


def problems(part: str, held_out: int, stopping: int) -> dict[str, list[Problem]]:
    """Returns the problems of a part in a random order that never changes.

    ``34+05=`` and ``05+34=`` are in the same split.

    Args:
      part: the part.
      held_out, stopping: number of problems in these splits.

    Returns:
      ``held_out``, ``stopping``, and the rest as ``train``.
    """
    if part == "trivial":
        pairs = [(a, b) for a in range(10, 100) for b in range(10) if a % 10 + b < 10]
        order = np.random.default_rng(0).permutation(len(pairs)).tolist()
        found = [
            (f"{left:02}+{right:02}=", str(left + right))
            for a, b in map(pairs.__getitem__, order)
            for left, right in ((a, b), (b, a))
        ]
        ends = [0, held_out, held_out + stopping, len(found)]
        splits = [found[start:end] for start, end in pairwise(ends)]
    else:
        operation = "add" if part == "learnable" else "multiply"
        every = ProblemSet(2, operation, test=held_out, validation=max(1, stopping))
        splits = [list(every.split(split)) for split in ("test", "validation", "train")]
    return dict(zip(("held_out", "stopping", "train"), splits, strict=True))


def parts_by_id(directory: Path) -> dict[str, str]:
    """Returns id -> part of each training prompt that ``write`` has written."""
    rows = map(json.loads, (directory / "train.jsonl").read_text().splitlines())
    found = {}
    for row in rows:
        metadata = {"part": row["part"]}
        found[prompt_id(False, "", row["question"], row["answer"], metadata).hex()] = row["part"]
    return found


def write(directory: Path, sizes: Sizes) -> None:
    """Writes one file of JSON lines for each split, and those of the warm start."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {
        part: problems(part, sizes.held_out[part], STOPPING if part == "learnable" else 0)
        for part in PARTS
    }
    lines = {part: _lines(part, found[part]["held_out"]) for part in PARTS}
    lines["warm_validation"] = _lines("learnable", found["learnable"]["stopping"])
    train = {part: _lines(part, found[part]["train"]) for part in PARTS}
    asked = {part: train[part][: sizes.train[part]] for part in PARTS}
    lines["train"] = [line for part in PARTS for line in asked[part]]
    others = train["learnable"][sizes.train["learnable"] :][: sizes.warm_up]
    lines["warm_train"] = TRIVIAL_TIMES * asked["trivial"] + others
    for name, some in lines.items():
        (directory / f"{name}.jsonl").write_text("".join(some))


def _lines(part: str, found: Iterable[Problem]) -> list[str]:
    rows = ({"question": question, "answer": answer, "part": part} for question, answer in found)
    return [json.dumps(row) + "\n" for row in rows]
