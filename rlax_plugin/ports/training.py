"""Interfaces between a trainer and the controller; see ``protocols`` for the other parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.types import BASE, EMPTY, Canary, Descent
from rlax_plugin.ports.orders import Followers, NoFollowers, Order
from rlax_plugin.ports.protocols import Arrays

if TYPE_CHECKING:
    import numpy as np


def _lacking(trainer: Trainer, declared: str, method: str) -> PluginError:
    return PluginError(f"{type(trainer).__name__} declares {declared} and has no method {method}")


class ConvertibleModel(Protocol):
    """A model of another library, read and checked, but not yet written.

    Attributes:
      description: in words, such as its architecture and number of parameters.
      nbytes: approximate number of bytes to write.
      notes: sentences on results that a user would not expect.
    """

    description: str
    nbytes: int
    notes: Sequence[str]

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        """Fills a directory with the files that a run starts from.

        ``model.yml`` in it has the config's keys of the model, and ``huggingface/`` its tokenizer.

        Args:
          directory: exists and is empty.
          home: the final directory, an absolute path.
          progress: (bytes written, total bytes).

        Raises:
          ConfigError: the model can no longer be read.
          OSError: the disk failed.
        """
        ...

    def verification(self, python: str) -> Callable[[Path], Sequence[str]]:
        """For ``--verify``: computes reference numbers from the original model, before ``write``.

        Args:
          python: path of a Python, which may have libraries that compute the original model.

        Returns:
          A function that compares a directory filled by ``write`` with these numbers. It returns
          sentences on the comparison, even if none was possible, and raises an RlaxError with
          figures if the two are not the same model.

        Raises:
          RlaxError: there are such numbers or libraries, but they cannot be used.
        """
        ...


class Exported(NamedTuple):
    """The result of ``Trainer.export_model``.

    Attributes:
      model: description in words, such as its architecture and number of parameters.
      files: names of the files with weights.
      notes: sentences on results that a user would not expect.
    """

    model: str
    files: Sequence[str]
    notes: Sequence[str] = ()


Conversion = Callable[[Arrays, Path, Callable[[str, "np.ndarray"], None]], None]
"""Writes the variables of a version as ``*.safetensors``, in the names of transformers' model and
in their own dtypes: (arrays, an empty directory, called with the name and value of each tensor)."""


class Trainer(ABC):
    """Base class of trainers, each of which runs a training loop.

    What a trainer does not declare is an error in a config that asks for it, or of the command that
    needs it. Only methods that it declares are called.

    Attributes:
      takes_signals: True if it completes its batches by ``rlax.signals``.
      takes_shared_prompts: True if its model reads rows in which samples share their prompt
        (``rlax.batches.shared_prompts``).
      rounds_weights: True if it can publish its weights rounded to bfloat16
        (``rlax.weights.dtype``). The canary is then computed from the rounded weights, as workers
        do.
      keeps_checkpoints: True if ``checkpoints``, ``publish_checkpoint``, ``publish_first`` and
        ``start_from`` are there, for ``rlax eval``, ``rlax train --from`` and ``rlax.retention``.
      spans_hosts: True if it can be spread over several hosts, see ``BuildContext.hosts``,
        ``follow`` and ``leave``. On host 0, ``run`` is called, and ``TrainerPort.followers`` are
        the other hosts.
      converts_models: True if ``examine_model``, ``checkpoint_path`` and ``export_model`` are
        there, for ``rlax convert`` and ``rlax export``.
      converts_versions: True if ``converter`` is there, for engines that declare
        ``weights_format: safetensors``.
      vocabulary: size of its model's vocabulary, every token id is below it; 0: not known yet, only
        before the first publication. Workers declare one, too, but may say anything: with a trainer
        that does not know its own, a token id that the model does not have may train.
    """

    takes_signals: bool = False
    takes_shared_prompts: bool = False
    rounds_weights: bool = False
    keeps_checkpoints: bool = False
    spans_hosts: bool = False
    converts_models: bool = False
    converts_versions: bool = False
    vocabulary: int = 0

    @abstractmethod
    def run(self, port: TrainerPort) -> None:
        """Runs the training loop to its end on the calling thread."""

    def checkpoints(self) -> Mapping[int, str]:
        """Training step -> name below ``checkpoints/`` in the run's directory."""
        raise _lacking(self, "keeps_checkpoints", "checkpoints")

    def publish_checkpoint(self, port: TrainerPort, name: str) -> None:
        """Publishes the weights of one checkpoint, under its step, and returns."""
        raise _lacking(self, "keeps_checkpoints", "publish_checkpoint")

    def publish_first(self, port: TrainerPort) -> None:
        """Publishes the weights that ``run`` starts from, as version 0, and returns.

        Called in place of ``run``, for a run that has no checkpoint. Anything that ``run`` would
        compute before its first step, such as a warm start, is computed here too.
        """
        raise _lacking(self, "keeps_checkpoints", "publish_first")

    def start_from(self, descent: Descent) -> str | None:
        """Makes ``run`` start from the weights of another run's checkpoint, as its version 0.

        Only the weights are used: no optimizer state and no step. A run that has a checkpoint of
        its own continues from that, and no longer needs the other run. Called before ``run``,
        which may raise the error as well.

        Returns:
          The setting of the config that these weights replace, in words; None if there is none.

        Raises:
          ConfigError: the checkpoint is missing or of another model, or contradicts the config.
        """
        raise _lacking(self, "keeps_checkpoints", "start_from")

    def follow(self, port: FollowerPort) -> None:
        """Runs the training loop on another host than 0, until host 0 ends it."""
        raise _lacking(self, "spans_hosts", "follow")

    def leave(self) -> None:
        """Parts from the other hosts; called on every host, once none computes anything more.

        Where hosts generate, that is after the last evaluation; else after training. A host whose
        part has failed does not call it.
        """
        raise _lacking(self, "spans_hosts", "leave")

    def examine_model(self, source: Path, dtype: str, scan_layers: bool) -> ConvertibleModel:
        """Reads a model's config, tokenizer and the shapes of its tensors.

        Args:
          source: a Hugging Face directory, or a GGUF file.
          dtype: dtype of the converted weights: float32 or bfloat16.
          scan_layers: True to store the layers as one scanned layer.

        Raises:
          ConfigError: the model is damaged or not supported; names the file and what is wrong.
        """
        raise _lacking(self, "converts_models", "examine_model")

    def checkpoint_path(self, name: str) -> str:
        """Path or URL of a checkpoint of the run, as ``export_model`` takes it."""
        raise _lacking(self, "converts_models", "checkpoint_path")

    def export_model(
        self,
        weights: str | Callable[[], dict[str, np.ndarray]],
        out: Path,
        dtype: Literal["float32", "bfloat16"],
        most_bytes: int,
        peft: bool,
    ) -> Exported:
        """Writes a model and its tokenizer in a form that ``transformers`` loads.

        Args:
          weights: path or URL of a checkpoint, of which only the parameters are read; or a function
            that reads a weight version into memory, name -> array, called once the config has been
            checked.
          out: new directory; it appears once all files are written, or not at all.
          dtype: dtype of the tensors.
          most_bytes: maximum size of a file of weights.
          peft: True writes only low-rank adapters, as a directory of PEFT.

        Raises:
          ConfigError: the model or its tokenizer cannot be exported, or the weights are not those
            of the model that the config describes; before anything is written.
          RlaxError: the weights cannot be read.
        """
        raise _lacking(self, "converts_models", "export_model")

    def converter(self) -> Conversion:
        """A function that converts versions of this run, called on one thread beside training.

        Called on that thread, after the first publication and only if a worker needs it.

        Raises:
          ConfigError: the model has no counterpart in transformers; the function raises it as well.
        """
        raise _lacking(self, "converts_versions", "converter")


class Decision(NamedTuple):
    """Instructions for a trainer at the end of a step.

    Attributes:
      save: save a checkpoint of this step, even if none is due.
      stop: return from ``run`` after this step.
    """

    save: bool
    stop: bool


class NewWeights(NamedTuple):
    """The weights after a step, as a trainer hands them over.

    Attributes:
      parts: part -> its variables in fresh buffers; None: unchanged since the previous version.
      canary: of ``TrainerPort.canary_tokens``; its log-probs may still be on a device.
    """

    step: int
    parts: Mapping[str, Arrays | None]
    canary: Canary | None = None


class Publication(Protocol):
    """The way of new weights from a trainer to the workers."""

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
          arrays: the variables of part ``base``; None: unchanged since the previous version, and
            neither written nor read again.
          canary: of ``canary_tokens`` under these weights; its log-probs may still be on a device.
          parts: further variables of the same kind, by the name of their part, such as ``adapter``.
        """
        self.take(NewWeights(step, {BASE: arrays, **parts}, canary))

    def take(self, weights: NewWeights) -> None:
        """Takes what ``publish`` was called with."""
        ...


class TrainerPort(Publication, Protocol):
    """A trainer's whole view of the controller; called on the trainer's thread.

    Attributes:
      followers: the other hosts of the trainer, if ``BuildContext.hosts`` says that there are some.
    """

    followers: Followers = NoFollowers()

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        """Blocks until the batch of ``step`` (from 1) is available.

        Returns:
          name -> array [rows, length, ...], see ``training.objective.arrays.ArraySpec``.

        Raises:
          DeadlineError, WorkerError: no batch will come.
        """
        ...

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Reports the metrics of a finished step (host or device values)."""

    def before_checkpoint(self, step: int) -> None:
        """Called before the trainer's own checkpoint of ``step``; saves the controller's state."""

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        """Shows the progress of a phase outside the training loop."""
        ...

    def waits(self, what: str, typical_s: float = 0.0) -> None:
        """Shows what the trainer does before its first step, such as an import or a compilation.

        Args:
          what: always the same text for the same activity, as its duration is remembered under it.
          typical_s: seconds that it typically takes; 0: unknown.
        """

    def found_damaged(self, what: str) -> None:
        """Shows something damaged that the trainer does without, such as its newest checkpoint.

        Args:
          what: a sentence that also says what counts instead.
        """

    def decide(self, step: int) -> Decision:
        """The trainer's instructions at the end of ``step``; call once, as late as possible.

        A stop that is requested while a step is computed applies to that step. There is one answer
        per step: a trainer on several hosts asks on one of them and passes it on.
        """
        ...


class FollowerPort(Publication, Protocol):
    """Host 0, as a trainer on another host sees it; called on the trainer's thread.

    ``publish`` takes the same parts as on host 0, after the same steps. This host then writes its
    own chunks of them, beside the trainer.
    """

    def next_order(self) -> Order:
        """Blocks until host 0 has given the next order.

        Raises:
          TrainingError: host 0 cannot be reached any more, or has ended training.
        """
        ...

    def decide(self, step: int) -> Decision:
        """Host 0's decision at the end of ``step``; blocks until it has decided.

        Raises:
          TrainingError: host 0 cannot be reached any more.
        """
        ...
