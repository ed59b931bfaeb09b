"""Interfaces between a trainer and the controller; see ``protocols`` for the other parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.types import EMPTY, Canary, Descent

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
class FirstWeightsReader(Protocol):
    """What a trainer offers besides ``run`` if ``rlax measure`` is to measure a config's policy."""

    def publish_first(self, port: TrainerPort) -> None:
        """Publishes the weights that ``run`` starts from, as version 0, and returns.

        Called in place of ``run``, for a run that has no checkpoint. What ``run`` would make before
        its first step, such as a warm start, is made here too.
        """
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


class ConvertibleModel(Protocol):
    """A model of another library, read and checked; nothing of it is written yet.

    Attributes:
      description: in words, such as its architecture and number of parameters.
      nbytes: how much will be written, about.
      notes: sentences on what a user would not expect.
    """

    description: str
    nbytes: int
    notes: Sequence[str]

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        """Fills a directory with what a run starts from.

        ``model.yml`` in it has the config's keys of the model, and ``huggingface/`` its tokenizer.

        Args:
          directory: exists and is empty.
          home: where it will be in the end, an absolute path.
          progress: (bytes written, bytes of all).

        Raises:
          ConfigError: the model cannot be read any more.
          OSError: the disk failed.
        """
        ...


@runtime_checkable
class VerifiableModel(Protocol):
    """What a ``ConvertibleModel`` offers besides ``write`` if it can be verified."""

    def verification(self, python: str) -> Callable[[Path], Sequence[str]]:
        """Finds numbers to compare the converted model with; called before anything is written.

        Args:
          python: path of a Python, which may have libraries that compute the original model.

        Returns:
          Compares a directory that ``write`` has filled with these numbers. It returns sentences on
          what was compared, also if nothing was, and raises an RlaxError with figures if the two
          are not the same model.

        Raises:
          RlaxError: there are such numbers or libraries, and they cannot be used.
        """
        ...


@runtime_checkable
class ModelConverter(Protocol):
    """What a trainer offers besides ``run`` if ``rlax convert`` is to be possible with it."""

    def examine_model(self, source: Path, dtype: str, scan_layers: bool) -> ConvertibleModel:
        """Reads a model's config, tokenizer and the shapes of its tensors.

        Args:
          source: a Hugging Face directory, or a GGUF file.
          dtype: of what will be written: float32 or bfloat16.
          scan_layers: whether layers are stored as one scanned layer.

        Raises:
          ConfigError: the model is damaged or not supported; names the file and what is wrong.
        """
        ...


class Exported(NamedTuple):
    """What ``ModelExporter.export_model`` has written.

    Attributes:
      model: in words, such as its architecture and number of parameters.
      files: names of the files with weights.
      notes: sentences on what a user would not expect.
    """

    model: str
    files: Sequence[str]
    notes: Sequence[str] = ()


@runtime_checkable
class ModelExporter(Protocol):
    """What a trainer offers besides ``run`` if ``rlax export`` is to be possible with it."""

    def checkpoints(self) -> Mapping[int, str]:
        """See ``CheckpointReader``."""
        ...

    def checkpoint_path(self, name: str) -> str:
        """Path or URL of a checkpoint of the run, as ``export_model`` takes it."""
        ...

    def export_model(
        self,
        weights: str | Callable[[], dict[str, np.ndarray]],
        out: Path,
        dtype: Literal["float32", "bfloat16"],
        most_bytes: int,
    ) -> Exported:
        """Writes a model so that ``transformers`` loads it, with its tokenizer.

        Args:
          weights: path or URL of a checkpoint, of which no more than the parameters are read; or
            what reads a weight version into memory, name -> array, called once the config is known
            to be right.
          out: directory, which does not exist; it appears when all is written, or not at all.
          dtype: of the tensors.
          most_bytes: largest size of a file of weights.

        Raises:
          ConfigError: the model or its tokenizer cannot be exported, or the weights are not those
            of the model that the config describes; before anything is written.
          RlaxError: the weights cannot be read.
        """
        ...


TRAINER_ABILITIES = (
    CheckpointReader,
    FirstWeightsReader,
    CheckpointStarter,
    ModelConverter,
    ModelExporter,
)


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

    def publish(
        self,
        step: int,
        arrays: Arrays | None,
        canary: Canary | None = None,
        parts: Mapping[str, Arrays | None] = EMPTY,
    ) -> None:
        """Hands over fresh buffers holding the weights after ``step`` steps; returns at once.

        Args:
          arrays: the variables of part ``base``; None: they are those of the version before, and
            are neither written nor read again.
          canary: of ``canary_tokens`` under these weights; its log-probs may still be on a device.
          parts: further variables of the same kind, by the name of their part, such as ``adapter``.
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
