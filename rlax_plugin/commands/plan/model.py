"""A model of the time of a step, fitted to a few measured runs.

It has the form of LlamaRL's (arXiv 2505.24034, theorem 7.5): a synchronous step takes the sum of
generation and training, one whose samples may be older the longer of both, if the machines are
enough for both at once. Generation takes a sum of terms that are linear in the work, so that their
coefficients are a least-squares fit, none of them negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.observed import Observed

Limit = Literal["generation", "training", "CPU", "generation + training"]

_OVERLAP = (0.7, 2.0)  # of a measured asynchronous step to a predicted one
_POWERS = (-0.5, 1.0)  # of the number of micro-batches; what is beyond is noise


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step in one arrangement; times in seconds.

    Attributes:
      limit: the part that would have to be faster for a faster step.
      bytes: memory of all processes, on the host.
    """

    arrangement: Arrangement
    step_s: float
    train_s: float
    generate_s: float
    limit: Limit
    bytes: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """The coefficients; seconds if nothing else is said.

    Attributes:
      cores: CPU cores that trainer and workers share; 0: each has machines of its own.
      samples, tokens: that are generated for a step.
      longest: tokens of the longest sample of a step.
      generating: of generation, whatever the work is; of each sample of a worker; of each decode
        step; of each slot in each decode step.
      training: of a step with one micro-batch, and the power of their number by which it grows or,
        as smaller ones may fit into a cache, shrinks.
      worker_cores: in use by a worker that generates alone.
      trainer_cores: in use by the trainer while it trains, and while workers generate: it then
        takes samples in, and on CPUs was seen to need the more the longer that lasts.
      rest_s: of a synchronous step, beside generation and training.
      overlap: measured time of an asynchronous step, divided by what this model says without it.
      trainer_bytes, batch_bytes: memory of the trainer, without and for the rows of an update.
      worker_bytes, slot_bytes: memory of a worker without slots, and of a slot.
      other_bytes: memory of all other processes.
    """

    cores: int
    samples: float
    tokens: float
    longest: float
    generating: tuple[float, float, float, float]
    training: tuple[float, float]
    worker_cores: float
    trainer_cores: tuple[float, float]
    rest_s: float
    overlap: float
    trainer_bytes: float
    batch_bytes: float
    worker_bytes: float
    slot_bytes: float
    other_bytes: float

    def predict(self, one: Arrangement) -> Predicted:
        """Returns the time of a step in an arrangement."""
        crowd = crowding(one.workers, self.worker_cores, self.cores)
        work = np.array(_generating(one, self.samples, self.tokens, self.longest, crowd))
        generate_s = float(work @ self.generating)
        one_part_s, power = self.training
        train_s = one_part_s * one.parts**power
        alone_s = generate_s + train_s + self.rest_s
        training, receiving = self.trainer_cores
        cpu_s = training * train_s + receiving * generate_s
        cpu_s += one.workers * self.worker_cores * generate_s / crowd
        limits: dict[Limit, float] = {
            "generation": generate_s,
            "training": train_s + self.rest_s,
            "CPU": cpu_s / self.cores if self.cores else 0.0,
        }
        limit: Limit = max(limits, key=lambda name: limits[name])
        step_s = self.overlap * limits[limit]
        if not one.overlaps:
            step_s, limit = alone_s, "generation + training"
        return Predicted(one, step_s, train_s, generate_s, limit, self._bytes(one))

    def _bytes(self, one: Arrangement) -> float:
        worker = self.worker_bytes + one.slots * self.slot_bytes
        trainer = self.trainer_bytes + self.batch_bytes / one.parts
        return trainer + one.workers * worker + self.other_bytes


def fit(runs: Sequence[Observed], *, cores: int) -> StepModel:
    """Fits the model to measured runs, the first of which has one worker and is synchronous.

    Args:
      cores: see ``StepModel``.
    """
    first = runs[0]
    alone = [one for one in runs if not one.arrangement.overlaps]
    single = [one for one in alone if one.arrangement.workers == 1]
    worker_cores = _cores(first.usage.workers_cpu_s / first.generate_s, cores)
    rows, targets = [], []
    for one in alone:
        crowd = crowding(one.arrangement.workers, worker_cores, cores)
        row = _generating(one.arrangement, one.samples, one.tokens, one.longest, crowd)
        rows.append(row)
        targets.append(one.generate_s)
        if math.isfinite(one.decode_step_s):
            steps = row[2] / crowd  # as many as in the row above, so that both weigh the same
            rows.append((0.0, 0.0, row[2], row[3]))
            targets.append(one.decode_step_s * steps)
    generating = _fitted(rows, targets)
    power, start = _slope(
        [math.log(one.arrangement.parts) for one in alone], [math.log(x.train_s) for x in alone]
    )
    least, most = _POWERS
    training = math.exp(start), min(most, max(least, power))
    rest_s = float(np.median([one.step_s - one.generate_s - one.train_s for one in alone]))
    worker_bytes, slot_bytes = _line(
        [one.arrangement.slots for one in single], [one.usage.worker_bytes for one in single]
    )
    trainer_bytes, batch_bytes = _line(
        [1 / one.arrangement.parts for one in single], [one.usage.trainer_bytes for one in single]
    )
    model = StepModel(
        cores=cores,
        samples=first.samples,
        tokens=first.tokens,
        longest=first.longest,
        generating=(generating[0], generating[1], generating[2], generating[3]),
        training=training,
        worker_cores=worker_cores,
        trainer_cores=_trainer_cores(alone, cores),
        rest_s=max(0.0, rest_s),
        overlap=1.0,
        trainer_bytes=trainer_bytes,
        batch_bytes=batch_bytes,
        worker_bytes=worker_bytes,
        slot_bytes=slot_bytes,
        other_bytes=max(one.usage.other_bytes for one in runs),
    )
    ratios = [
        one.step_s / model.predict(one.arrangement).step_s
        for one in runs
        if one.arrangement.overlaps
    ]
    if not ratios:
        return model
    least, most = _OVERLAP
    return replace(model, overlap=min(most, max(least, float(np.median(ratios)))))


def _trainer_cores(alone: Sequence[Observed], cores: int) -> tuple[float, float]:
    """Returns the CPU cores in use by the trainer in the two parts of a synchronous step."""
    known = [one for one in alone if 0 < one.usage.trainer_cpu_s < math.inf]
    if not known:
        return 1.0, 0.0
    training, receiving = _fitted(
        [(one.train_s, one.generate_s) for one in known],
        [one.usage.trainer_cpu_s for one in known],
    )
    most = float(cores or math.inf)
    return min(training, most), min(receiving, most)


def _cores(used: float, cores: int) -> float:
    """Returns the CPU cores in use, or one if this is not known."""
    return min(used, float(cores or used)) if 0 < used < math.inf else 1.0


def crowding(workers: int, worker_cores: float, cores: int) -> float:
    """Returns how many times slower workers are that share this machine's cores."""
    return max(1.0, workers * worker_cores / cores) if cores else 1.0


def _generating(
    one: Arrangement, samples: float, tokens: float, longest: float, crowd: float
) -> tuple[float, float, float, float]:
    """Returns the work of generation that the coefficients of ``StepModel.generating`` multiply."""
    each = samples / one.workers
    # All at once, or one after the other in the slots; the longest of the last ones ends alone.
    mean = tokens / samples
    queued = each * mean / one.slots + max(0.0, longest - mean)
    steps = longest if each <= one.slots else max(longest, queued)
    return 1.0, crowd * each, crowd * steps, crowd * steps * one.slots


def _fitted(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Returns coefficients without a negative one, by the least sum of squared relative errors."""
    matrix, values = np.array(rows, float), np.array(targets, float)
    weights = 1.0 / np.maximum(values, 1e-9)
    matrix = matrix * weights[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    found, _ = nnls(matrix / scale, values * weights)
    return [float(one) for one in found / scale]


def _slope(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Returns the slope and the start of a line through values; it is flat through one place."""
    if max(places) == min(places):
        return 0.0, float(np.mean(values))
    slope, start = np.polyfit(places, values, 1)
    return float(slope), float(start)


def _line(places: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
    """Returns the start and the slope of a line through sizes; both are at least 0."""
    slope = max(0.0, _slope(places, sizes)[0])
    return max(0.0, float(np.mean(sizes) - slope * np.mean(places))), slope
