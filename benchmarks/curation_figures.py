"""Computes the cost of a run of ``curation.py`` until the target, from the run's own records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rlax_plugin.commands.report.evaluations import read_evaluations
from rlax_plugin.pass_rates.files import MeasuredRates
from rlax_plugin.records import journal
from rlax_plugin.records.events import Generated
from rlax_plugin.records.files import RunFiles

HIGH, LOW = 0.9, 0.1  # pass rates from which a prompt teaches nothing


@dataclass(frozen=True)
class Cost:
    """The cost of a run up to some moment.

    Attributes:
      steps: training steps.
      rollouts: generated samples, those of rejected and dropped groups included.
      tokens: generated tokens of these.
    """

    steps: float = 0
    rollouts: float = 0
    tokens: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.steps + other.steps, self.rollouts + other.rollouts, self.tokens + other.tokens
        )


@dataclass(frozen=True)
class Point:
    """One evaluation: the cost before it, and pass@1 on each held-out set."""

    cost: Cost
    pass_at_1: dict[str, float]


def generated(segments: Iterable[journal.Segment]) -> dict[int, Cost]:
    """Returns step -> cost of all that was generated until its batch was complete; 0 -> no cost.

    A step that was committed again after a resume counts as when it was first committed.
    """
    rollouts = tokens = 0
    found = {0: Cost()}
    for segment in segments:
        for event in segment.events:
            if isinstance(event, Generated):
                tokens += event.tokens
                rollouts += event.samples if event.turn == 0 else 0
        if segment.step is not None:
            found.setdefault(segment.step, Cost(segment.step, rollouts, tokens))
    return found


def curve(run: Path, measured: Cost) -> list[Point]:
    """Returns the evaluations of a run by version.

    Args:
      run: directory of the run.
      measured: cost of measuring pass rates before the run, to choose its prompts.
    """
    files = RunFiles(run)
    costs = generated(segment for segment, _ in journal.read(files))
    found: dict[int, dict[str, float]] = {}
    for one in read_evaluations(files):
        if one.measure == "pass_at_1" and not one.moment.startswith("eval-"):
            found.setdefault(one.version, {})[one.held_out] = one.estimate.value
    return [Point(measured + costs[version], found[version]) for version in sorted(found)]


def crossing(points: Sequence[Point], held_out: str, target: float) -> Cost | None:
    """Returns the cost when pass@1 on a set first reached the target; None if it did not.

    Between two evaluations, pass@1 is assumed to be linear in the cost.
    """
    before: Point | None = None
    for point in points:
        value = point.pass_at_1[held_out]
        if value >= target:
            if before is None:
                return point.cost
            low = before.pass_at_1[held_out]
            part = (target - low) / (value - low)
            start, end = asdict(before.cost), asdict(point.cost)
            return Cost(**{n: start[n] + part * (end[n] - start[n]) for n in start})
        before = point
    return None


def measured_cost(rates: MeasuredRates) -> Cost:
    """Returns the cost of measuring pass rates before training."""
    samples = sum(float(rates.column(name).sum()) for name in ("passed", "failed", "errored"))
    return Cost(0, samples, float(rates.column("tokens").sum()))


def shares(rates: MeasuredRates, part_of: dict[str, str]) -> dict[str, dict[str, float]]:
    """Returns the number of prompts and their shares by pass rate, for each part and for all.

    Args:
      rates: measured pass rates.
      part_of: id -> part.
    """
    passed, failed = rates.column("passed"), rates.column("failed")
    rate = passed / np.maximum(passed + failed, 1)
    parts = np.array([part_of[one] for one in rates.table.column("id").to_pylist()])
    found = {}
    for part in (*dict.fromkeys(part_of.values()), "all"):
        of = rate[(parts == part) | (part == "all")]
        found[part] = {
            "prompts": len(of),
            "pass_rate": round(float(of.mean()), 4),
            "high": round(float((of >= HIGH).mean()), 4),
            "between": round(float(((of > LOW) & (of < HIGH)).mean()), 4),
            "low": round(float((of <= LOW).mean()), 4),
        }
    return found
