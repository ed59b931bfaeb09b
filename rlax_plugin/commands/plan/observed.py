"""Reads the time of a run's steps from its metrics."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.usage import Usage
from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics import file
from rlax_plugin.records.files import RunFiles

WARM = 3
"""Steps at the start that do not count: programs are compiled during them."""

LEAST = 4
"""Further steps that a run needs."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The steps of one run, after those that do not count.

    Attributes:
      arrangement: of the run.
      step_s, train_s, generate_s: medians of the metrics ``time/...``, in seconds.
      decode_step_s: duration of one decode step of a worker, in seconds; NaN: not known.
      samples, tokens: generated for a step, means.
      longest: tokens of the longest sample of a step, mean.
      usage: of its processes.
    """

    arrangement: Arrangement
    step_s: float
    train_s: float
    generate_s: float
    decode_step_s: float
    samples: float
    tokens: float
    longest: float
    usage: Usage


def observed(directory: str, arrangement: Arrangement, usage: Usage, warm: int) -> Observed:
    """Reads the metrics of a complete run.

    Args:
      warm: steps at the start that do not count.

    Raises:
      RlaxError: it has too few steps, or they generate nothing.
    """
    recorded = file.read(RunFiles(directory).get(file.NAME)).by_step
    steps = [line for step, line in sorted(recorded.items()) if step > warm]
    if len(steps) < LEAST:
        raise RlaxError(
            f"{directory} has {len(steps)} steps after the first {warm}, and a plan needs "
            f"{LEAST}: raise --steps"
        )

    def every(name: str) -> list[float]:
        return [float(line[name]) for line in steps if name in line]

    def median(name: str) -> float:
        return statistics.median(values) if (values := every(name)) else math.nan

    def mean(name: str) -> float:
        return statistics.fmean(values) if (values := every(name)) else math.nan

    found = Observed(
        arrangement,
        step_s=median("time/step_s"),
        train_s=median("time/train_s"),
        generate_s=median("time/generate_s"),
        decode_step_s=median("rollout/decode_step_s"),
        samples=mean("rollout/samples"),
        tokens=mean("rollout/tokens"),
        longest=mean("length/issued_max"),
        usage=usage,
    )
    needed = [found.step_s, found.train_s, found.samples, found.longest]
    if not arrangement.overlaps:  # then a step's samples may all be issued in the one before it
        needed.append(found.generate_s)
    if not all(0 < one < math.inf for one in needed):
        raise RlaxError(f"{directory}: most of its steps generate nothing, so nothing is measured")
    return found
