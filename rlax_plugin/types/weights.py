"""Weight versions, and the source of a run's first weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Descent:
    """The checkpoint of another run whose weights a run starts from, see ``rlax train --from``.

    Attributes:
      run: the other run's directory, an absolute path or a URL.
      step: RL step of the checkpoint.
      checkpoint: its name below ``checkpoints/``.
    """

    run: str
    step: int
    checkpoint: str

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One variable of a published version: shape, dtype name, device fingerprint (uint32)."""

    shape: tuple[int, ...]
    dtype: str
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Canary:
    """Log-probs that every worker must reproduce before it generates with a version.

    Attributes:
      tokens: int32 [n + 1], a fixed sequence.
      logprobs: float32 [n], nats at temperature 1; ``logprobs[t]`` belongs to ``tokens[t + 1]``
        given ``tokens[: t + 1]``. The trainer computes them from the published buffers.
      tolerance: largest allowed difference, nats; proportionally more for log-probs below -16 nats.
    """

    tokens: np.ndarray
    logprobs: Any
    tolerance: float


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published set of weights, as the parameter server knows it.

    Attributes:
      version: counts from 0; equals the training step that produced it.
      step: completed training steps.
      path: location of the bytes; every worker can read it.
      tensors: variable name -> spec, for every variable that is neither cache nor RNG state.
      canary: log-probs that a worker must reproduce; None if the trainer computes none.
    """

    version: int
    step: int
    path: str
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    canary: Canary | None = None
