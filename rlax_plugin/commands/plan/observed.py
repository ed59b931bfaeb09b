"""Reads the time of a run's steps from its metrics."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics import file
from rlax_plugin.records.files import RunFiles

WARM = 3
"""Steps at the start that do not count: what they need is compiled during them."""

LEAST = 4
"""Further steps that a run needs."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The steps of one run, after the first ``WARM``.

    Attributes:
      arrangement: of the run.
      step_s, train_s, generate_s: medians of the metrics ``time/...``, in seconds.
      decode_step_s: duration of one decode step of a worker, in seconds; NaN: not known.
      samples, tokens: generated for a step, means.
      trainer_cpu_s, workers_cpu_s: CPU time of a step, in seconds; NaN: not known.
      trainer_bytes, worker_bytes: the largest resident memory of the trainer, and of a worker.
    """

    arrangement: Arrangement
    step_s: float
    train_s: float
    generate_s: float
    decode_step_s: float
    samples: float
    tokens: float
    trainer_cpu_s: float
    workers_cpu_s: float
    trainer_bytes: float
    worker_bytes: float


def observed(directory: str, arrangement: Arrangement) -> Observed:
    """Reads the metrics of a run.

    Raises:
      RlaxError: it has too few steps.
    """
    recorded = file.read(RunFiles(directory).get(file.NAME)).by_step
    steps = [line for step, line in sorted(recorded.items()) if step > WARM]
    if len(steps) < LEAST:
        raise RlaxError(
            f"{directory} has {len(steps)} steps after the first {WARM}, and a plan needs "
            f"{LEAST}: raise --steps"
        )

    def every(name: str) -> list[float]:
        return [float(line[name]) for line in steps if name in line]

    def median(name: str) -> float:
        return statistics.median(values) if (values := every(name)) else math.nan

    def mean(name: str) -> float:
        return statistics.fmean(values) if (values := every(name)) else math.nan

    step_s = statistics.fmean(every("time/step_s"))
    workers = arrangement.workers
    largest = "machine/workers_memory_bytes" + ("_max" if workers > 1 else "")
    return Observed(
        arrangement,
        step_s=median("time/step_s"),
        train_s=median("time/train_s"),
        generate_s=median("time/generate_s"),
        decode_step_s=median("rollout/decode_step_s"),
        samples=mean("rollout/samples"),
        tokens=mean("rollout/tokens"),
        trainer_cpu_s=mean("machine/trainer_cpu") * step_s,
        workers_cpu_s=mean("machine/workers_cpu") * step_s,
        trainer_bytes=max(every("machine/trainer_memory_bytes"), default=0.0),
        worker_bytes=max(every(largest), default=0.0),
    )
