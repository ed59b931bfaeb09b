"""The controller as a trainer sees it, which checks the trainer's calls.

No model or process is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Canary
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.ports.training import Decision, NewWeights, TrainerPort
from rlax_plugin.testing.builders import make_arrays, make_batch

CANARY_TOKENS = np.array([5, 17, 33, 2, 60], np.int32)


class FakeTrainerPort(TrainerPort):
    """The controller as a trainer sees it; a call out of order is a TrainingError.

    Attributes:
      calls: (method, step) of every call that has a step.
      published: step -> a copy of the arrays.
      canaries: step -> the canary published with them.
      metrics: step -> metrics of ``step_done``.
      decided: step -> result of ``decide``.
      last_step: the newest finished step; before the first, the step from which training started.

    Args:
      batches: step -> arrays; default: those of ``make_batch``, for a vocabulary of 64.
      stop_after: the step after which the trainer must stop.
    """

    def __init__(
        self,
        batches: Callable[[int], Mapping[str, np.ndarray]] | None = None,
        *,
        canary_tokens: np.ndarray = CANARY_TOKENS,
        stop_after: int | None = None,
    ):
        self.calls: list[tuple[str, int]] = []
        self.published: dict[int, dict[str, np.ndarray]] = {}
        self.canaries: dict[int, Canary | None] = {}
        self.metrics: dict[int, Mapping[str, Any]] = {}
        self.decided: dict[int, Decision] = {}
        self.last_step = 0
        self._stopped = False
        self._batches = batches or (lambda step: make_arrays(make_batch(step)))
        self._stop_after = stop_after
        self._canary_tokens = canary_tokens
        self._training: int | None = None
        self._buffers: dict[int, Arrays] = {}
        self._parts: dict[str, Arrays] = {}  # as they were last published

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        self._record("next_batch", step)
        self._require(bool(self.published), "publish what training starts from first")
        self._require(self._training is None, f"step {self._training} is not done")
        self._require(step == self.last_step + 1, f"the next step is {self.last_step + 1}")
        newest = max(self.published)
        self._require(newest == self.last_step, f"version {self.last_step} is not published")
        self._require(not self._stopped, "a stop was decided")
        self._training = step
        return self._batches(step)

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._canary_tokens

    def take(self, weights: NewWeights) -> None:
        step, canary = weights.step, weights.canary
        first = not self.published
        self._record("publish", step)
        if first:
            self._require(self._training is None, "the first version precedes the first batch")
            self.last_step = step
        else:
            current = self._training or self.last_step
            self._require(step == current, f"the weights are those after step {current}")
            self._require(step not in self.published, "it is published already")
        for name, of_part in weights.parts.items():
            known = of_part is not None or name in self._parts
            self._require(known, f"part {name!r} was not published before, so it cannot be kept")
            self._parts[name] = self._parts[name] if of_part is None else of_part
        buffers = {n: array for part in weights.parts for n, array in self._parts[part].items()}
        copies = {name: np.array(array) for name, array in buffers.items()}
        if not first:
            before = _structure(next(iter(self.published.values())))
            same = _structure(copies) == before
            self._require(same, f"{_structure(copies)} instead of {before}")
        self._require(bool(copies), "there are no arrays")
        if canary is not None:
            self._check_canary(canary)
        self.published[step], self._buffers[step] = copies, buffers
        self.canaries[step] = canary

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._record("step_done", step)
        self._require(step == self._training, f"step {self._training} is being trained")
        named = isinstance(metrics, Mapping) and all(isinstance(name, str) for name in metrics)
        self._require(named, f"metrics are {metrics!r}")
        self.metrics[step] = metrics
        self._training, self.last_step = None, step

    def before_checkpoint(self, step: int) -> None:
        self._record("before_checkpoint", step)
        current = self._training or self.last_step
        self._require(step == current, f"the step is {current}")

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        if not (phase and 0 <= done <= of):
            raise TrainingError(f"progress({phase!r}, {done}, {of}): expected 0 <= done <= of")

    def decide(self, step: int) -> Decision:
        self._record("decide", step)
        current = self._training or self.last_step
        self._require(step == current, f"the step is {current}")
        self._require(step not in self.decided, "it is decided already: ask once per step")
        self._stopped = self._stop_after is not None and step >= self._stop_after
        decision = self.decided[step] = Decision(save=self._stopped, stop=self._stopped)
        return decision

    def close(self) -> None:
        """Checks conditions that are only known after ``run`` has returned.

        Raises:
          TrainingError: a step was started but not finished; published buffers were written to.
        """
        if self._training is not None:
            raise TrainingError(f"run returned with step {self._training} not done")
        if self.last_step not in self.published:
            raise TrainingError(f"run returned without publish({self.last_step})")
        for step, arrays in self._buffers.items():
            for name, copy in self.published[step].items():
                if np.asarray(arrays[name]).tobytes() != copy.tobytes():
                    raise TrainingError(
                        f"publish({step}): {name!r} was changed afterwards; hand over fresh buffers"
                    )

    def _check_canary(self, canary: Canary) -> None:
        logprobs = np.asarray(canary.logprobs)
        asked = np.array_equal(canary.tokens, self._canary_tokens)
        self._require(asked, f"the canary is of tokens {canary.tokens}")
        fits = logprobs.shape == (len(self._canary_tokens) - 1,)
        right = fits and bool(np.isfinite(logprobs).all() and logprobs.max() <= 1e-6)
        self._require(right, f"the canary's log-probs are {logprobs}")
        self._require(canary.tolerance > 0, f"the canary's tolerance is {canary.tolerance}")

    def _record(self, method: str, step: int) -> None:
        self.calls.append((method, step))

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            method, step = self.calls[-1]
            raise TrainingError(f"{method}({step}): {otherwise}")


def _structure(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> shape and dtype, in the order of names."""
    return {n: (tuple(a.shape), np.dtype(a.dtype).name) for n, a in sorted(arrays.items())}
