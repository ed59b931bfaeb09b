"""A model of the time of a step, fitted to a few measured runs.

It has the form of LlamaRL's (arXiv 2505.24034, theorem 7.5): a synchronous step takes the sum of
generation and training, an asynchronous one the longer of both, if the machines are enough for
both at once. What each takes is a sum of terms that are linear in the work, so that the
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
from rlax_plugin.errors import RlaxError

Limit = Literal["generation", "training", "CPU", "generation + training"]

_OVERLAP = (0.7, 2.0)  # of a measured asynchronous step to a predicted one


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step in one arrangement; times in seconds.

    Attributes:
      limit: the part that takes the longest.
      bytes: memory of all processes.
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
      longest: most tokens of a sample.
      generating: of generation, whatever the work is; of each sample of a worker; of each decode
        step; of each slot in each decode step.
      training: of a step, whatever the parts are; of each micro-batch.
      worker_cores: in use by a worker that generates alone.
      trainer_cpu_s: CPU time of the trainer in a step.
      rest_s: of a synchronous step, beside generation and training.
      overlap: measured time of an asynchronous step, divided by what this model says without it.
      trainer_bytes, worker_bytes, slot_bytes: memory of the trainer, of a worker without slots,
        and of a slot.
    """

    cores: int
    samples: float
    tokens: float
    longest: int
    generating: tuple[float, float, float, float]
    training: tuple[float, float]
    worker_cores: float
    trainer_cpu_s: float
    rest_s: float
    overlap: float
    trainer_bytes: float
    worker_bytes: float
    slot_bytes: float

    def predict(self, one: Arrangement) -> Predicted:
        """Returns the time of a step in an arrangement."""
        crowd = crowding(one.workers, self.worker_cores, self.cores)
        work = np.array(_generating(one, self.samples, self.tokens, self.longest, crowd))
        generate_s = float(work @ self.generating)
        train_s = float(np.array(_training(one)) @ self.training)
        alone_s = generate_s + train_s + self.rest_s
        cpu_s = self.trainer_cpu_s + one.workers * self.worker_cores * generate_s / crowd
        limits: dict[Limit, float] = {
            "generation": generate_s,
            "training": train_s + self.rest_s,
            "CPU": cpu_s / self.cores if self.cores else 0.0,
        }
        limit: Limit = max(limits, key=lambda name: limits[name])
        both_s = self.overlap * limits[limit]
        if not one.overlaps:
            # The first step after new weights waits for its samples; those of the others are
            # generated beside training.
            step_s = (alone_s + (one.reload_every - 1) * both_s) / one.reload_every
            limit = "generation + training" if one.reload_every == 1 else limit
        else:
            step_s = both_s
        memory = self.trainer_bytes + one.workers * (
            self.worker_bytes + one.slots * self.slot_bytes
        )
        return Predicted(one, step_s, train_s, generate_s, limit, memory)


def fit(runs: Sequence[Observed], *, cores: int, longest: int) -> StepModel:
    """Fits the model to measured runs, the first of which has one worker and is synchronous.

    Args:
      cores: see ``StepModel``.
      longest: most tokens of a sample.

    Raises:
      RlaxError: no run is synchronous with one worker.
    """
    alone = [one for one in runs if not one.arrangement.overlaps]
    single = [one for one in alone if one.arrangement.workers == 1]
    if not single:
        raise RlaxError("a plan needs a measured run with one worker and a staleness of 1")
    first = single[0]
    used = first.workers_cpu_s / first.generate_s
    worker_cores = min(used, float(cores or 1)) if math.isfinite(used) else 1.0
    rows, targets = [], []
    for one in alone:
        crowd = crowding(one.arrangement.workers, worker_cores, cores)
        row = _generating(one.arrangement, one.samples, one.tokens, longest, crowd)
        rows.append(row)
        targets.append(one.generate_s)
        if math.isfinite(one.decode_step_s):
            steps = row[2] / crowd  # as many as in the row above, so that both weigh the same
            rows.append((0.0, 0.0, row[2], row[3]))
            targets.append(one.decode_step_s * steps)
    generating = _fitted(rows, targets)
    training = _fitted([_training(one.arrangement) for one in alone], [x.train_s for x in alone])
    rest_s = float(np.median([one.step_s - one.generate_s - one.train_s for one in alone]))
    trainer_cpu_s = first.trainer_cpu_s if math.isfinite(first.trainer_cpu_s) else first.train_s
    slot_bytes = _slot_bytes(single)
    model = StepModel(
        cores=cores,
        samples=first.samples,
        tokens=first.tokens,
        longest=longest,
        generating=(generating[0], generating[1], generating[2], generating[3]),
        training=(training[0], training[1]),
        worker_cores=worker_cores,
        trainer_cpu_s=trainer_cpu_s,
        rest_s=max(0.0, rest_s),
        overlap=1.0,
        trainer_bytes=max(one.trainer_bytes for one in runs),
        worker_bytes=max(0.0, first.worker_bytes - first.arrangement.slots * slot_bytes),
        slot_bytes=slot_bytes,
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


def crowding(workers: int, worker_cores: float, cores: int) -> float:
    """Returns how many times slower workers are that share this machine's cores."""
    return max(1.0, workers * worker_cores / cores) if cores else 1.0


def _generating(
    one: Arrangement, samples: float, tokens: float, longest: int, crowd: float
) -> tuple[float, float, float, float]:
    """Returns the work of generation that the coefficients of ``StepModel.generating`` multiply."""
    each = samples / one.workers
    # All at once, or one after the other in the slots; the longest of the last ones ends alone.
    mean = tokens / samples
    steps = longest if each <= one.slots else max(longest, each * mean / one.slots + longest - mean)
    return 1.0, crowd * each, crowd * steps, crowd * steps * one.slots


def _training(one: Arrangement) -> tuple[float, float]:
    return 1.0, float(one.parts)


def _fitted(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Returns coefficients without a negative one, by the least sum of squared relative errors."""
    matrix, values = np.array(rows, float), np.array(targets, float)
    weights = 1.0 / np.maximum(values, 1e-9)
    matrix = matrix * weights[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    found, _ = nnls(matrix / scale, values * weights)
    return [float(one) for one in found / scale]


def _slot_bytes(single: Sequence[Observed]) -> float:
    """Returns the memory of a slot, from two runs that have different numbers of them."""
    slots = [one.arrangement.slots for one in single]
    if max(slots) == min(slots):
        return 0.0
    slope = np.polyfit(slots, [one.worker_bytes for one in single], 1)[0]
    return max(0.0, float(slope))
