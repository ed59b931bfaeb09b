"""The numbers of a training recipe that follow from its size; ``rlax init`` writes them.

The rule is calibrated with the built-in model on sums. Adam's update of a weight has about the size
of the learning rate, however small or noisy the gradient is. A batch of few samples therefore moves
the weights as far as a large one, mostly in random directions, and a short run has no time to
recover from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 100
"""RL steps of a run if the user gives no number: the built-in model takes 2 or 3 minutes."""
WIDTH = 64
"""Width of the built-in model."""
ADAPTERS_RATE = 10
"""Learning rate of low-rank adapters, by that of full training ("LoRA Without Regret", Thinking
Machines, https://thinkingmachines.ai/blog/lora/)."""

_RATE = 5e-4  # of a run with the sizes below
_ROWS = 512
_STEPS = 320
_WARMUP = 0.1
_LOGITS = 2**28  # bytes, of one micro-batch
_EVALUATIONS = 4  # parts of a run, each of which ends with an evaluation
_STEPS_BETWEEN = 10  # an evaluation takes about as long as some steps


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a run on which its other numbers depend.

    Attributes:
      groups: number of groups in a batch.
      group_size: number of samples in a group.
      steps: number of RL steps.
      staleness: largest staleness of a sample, in weight versions; 1 is on-policy.
      width: width of the model's embedding.
      workers: number of rollout workers.
      adapters: True if low-rank adapters are trained in place of the weights.
    """

    groups: int
    group_size: int
    steps: int
    staleness: int
    width: int
    workers: int
    adapters: bool = False

    @property
    def rows(self) -> int:
        """The number of samples in a batch."""
        return self.groups * self.group_size

    @property
    def learning_rate(self) -> float:
        """The peak learning rate, with three digits.

        5e-4 sqrt(rows / 512) sqrt(steps / 320) (64 / width)^1.5 / staleness, where the first three
        quotients are at most 1; ten times that with adapters (``ADAPTERS_RATE``).
        """
        samples = min(1.0, self.rows / _ROWS) * min(1.0, self.steps / _STEPS)
        model = min(1.0, WIDTH / self.width)
        rate = _RATE * math.sqrt(samples) * model**1.5 / self.staleness
        return float(f"{rate * (ADAPTERS_RATE if self.adapters else 1):.2e}")

    @property
    def learning_rate_text(self) -> str:
        """The learning rate as a number of YAML, such as 6.25e-5."""
        digits, exponent = f"{self.learning_rate:.2e}".split("e")
        return f"{float(digits)}e{int(exponent)}"

    @property
    def warmup_fraction(self) -> float:
        """The fraction of the steps in which the learning rate rises from 0 to its peak.

        Adam's first updates are the largest ones: its mean of gradients has no past yet.
        """
        return _WARMUP if self.steps * _WARMUP >= 1 else 0.0

    @property
    def evaluate_every(self) -> int:
        """The number of steps between two evaluations during training; 0: there are none.

        An evaluation during training needs a second worker.
        """
        between = max(_STEPS_BETWEEN, self.steps // _EVALUATIONS)
        return between if self.workers > 1 and between < self.steps else 0

    def evaluation(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of ``rlax.evaluation``, with evaluations during training if possible."""
        every = self.evaluate_every if settings["problems"] else 0
        return dict(settings) | ({"every": every} if every else {})

    def parts(self, row_tokens: int, vocab_size: int) -> int:
        """Returns the smallest number of equal parts of a batch whose logits fit into memory.

        Logits of whole rows count, although a trainer may compute those of sampled tokens only:
        what its layers keep for the backward pass grows with the row, and is not counted.
        """
        rows, row = self.rows, row_tokens * vocab_size * 4
        return next(
            n
            for n in range(1, rows + 1)
            if rows % n == 0 and (rows // n * row <= _LOGITS or n == rows)
        )
