"""Interfaces between a trainer and the controller; see ``protocols`` for the other parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.types import Canary, Descent

if TYPE_CHECKING:
    import numpy as np


class Trainer(Protocol):
    """Runs the training loop to its end on the calling thread."""

    def run(self, port: TrainerPort) -> None: ...


@runtime_checkable
class CheckpointReader(Protocol):
    """What a trainer offers besides ``run`` if ``rlax eval`` is to measure its checkpoints."""

    def checkpoints(self) -> Mapping[int, str]:
        """Training step -> name below ``checkpoints/`` in the run's directory."""
        ...

    def publish_checkpoint(self, port: TrainerPort, name: str) -> None:
        """Publishes the weights of one checkpoint, under its step, and returns."""
        ...


@runtime_checkable
class CheckpointStarter(Protocol):
    """What a trainer offers besides ``run`` if ``rlax train --from`` is to be possible with it."""

    def checkpoints(self) -> Mapping[int, str]:
        """See ``CheckpointReader``."""
        ...

    def start_from(self, descent: Descent) -> str | None:
        """Has ``run`` start from the weights of another run's checkpoint, as its version 0.

        Only the weights are taken: no optimizer state and no step. A run that has a checkpoint of
        its own goes on from that, and does not need the other run any more. Called before ``run``,
        which may raise the error as well.

        Returns:
          What the config asks for and these weights replace, in words; None: nothing.

        Raises:
          ConfigError: the checkpoint is gone or of another model, or the config says otherwise.
        """
        ...


class Decision(NamedTuple):
    """What a trainer must do at the end of a step.

    Attributes:
      save: save a checkpoint of this step, whether or not one is due.
      stop: return from ``run`` after this step.
    """

    save: bool
    stop: bool


class TrainerPort(Protocol):
    """All that a trainer knows of the controller; called on the trainer's thread."""

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        """Blocks until the batch of ``step`` (from 1) is there.

        Returns:
          name -> array [rows, length, ...], see ``objective.arrays.ArraySpec``.

        Raises:
          DeadlineError, WorkerError: no batch will come.
        """
        ...

    @property
    def canary_tokens(self) -> np.ndarray:
        """int32 [n + 1]: the tokens of every version's canary, see ``types.Canary``."""
        ...

    def publish(self, step: int, arrays: Arrays, canary: Canary | None = None) -> None:
        """Hands over fresh buffers holding the weights after ``step`` steps; returns at once.

        Args:
          canary: of ``canary_tokens`` under these weights; its log-probs may still be on a device.
        """
        ...

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Reports the metrics of a finished step (host or device values)."""
        ...

    def before_checkpoint(self, step: int) -> None:
        """Called before the trainer's own checkpoint of ``step``; saves the controller's state."""
        ...

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        """Shows how far a phase outside the training loop is."""
        ...

    def decide(self, step: int) -> Decision:
        """What the trainer must do at the end of ``step``; ask once, as late as possible.

        A stop that is requested while a step is computed holds for that step. There is one answer
        per step: a trainer on several hosts asks on one of them and passes it on.
        """
        ...
