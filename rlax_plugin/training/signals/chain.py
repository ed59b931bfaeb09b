"""The signals of a run, one after the other, around the advantages of each batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.training.objective.advantages import AdvantageSlot, of_batch, returns_of
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS, TOKEN_REWARDS
from rlax_plugin.training.objective.diagnostics import spread_of
from rlax_plugin.training.objective.terms import LossTerm, mean
from rlax_plugin.training.signals.model_view import ModelView
from rlax_plugin.training.signals.signal import (
    ADVANTAGE_INPUTS,
    FINAL_VALUES,
    RETURNS,
    VALUES,
    BatchSignal,
)
from rlax_plugin.training.signals.state_files import SignalState, prune

_METRICS = "objective/"


class SignalChain:
    """Completes batches, and keeps the state of its signals beside the trainer's checkpoints.

    Advantages are computed here only where a signal adds one of ``ADVANTAGE_INPUTS``; otherwise
    they stay those of the recorded batch.

    Args:
      signals: name -> signal, of ``chosen_signals``, in order; each receives the arrays that
        earlier ones added. An empty chain changes nothing.
      files: the run's directory.
      advantages: the slot that turns rewards, token rewards and values into advantages.
      checkpoints: the steps of which the trainer has a checkpoint.
      epochs: number of times the loss reads every token of a batch.

    Attributes:
      device_arrays: name -> spec of each array that ``complete`` adds for the loss.
      terms: name -> term that the signals add to the loss.
      metrics: of the latest batch: those of the signals, as of ``terms.mean``; sums over tokens as
        the loss's, added up over all epochs, where advantages were computed here
        ``objective/advantage`` and ``objective/advantage_abs``, and with values
        ``objective/value``, ``objective/returns``, and the sums of ``diagnostics.spread_of``.
      warm_up_steps: number of first steps in which the trainer leaves the policy as it is.

    Raises:
      TrainingError: two signals add the same array or term, or one adds an array that the batch
        has already.
    """

    def __init__(
        self,
        signals: Mapping[str, BatchSignal],
        files: RunFiles,
        advantages: AdvantageSlot,
        *,
        checkpoints: Callable[[], Collection[int]],
        epochs: int = 1,
    ):
        self._signals, self._files = dict(signals), files
        self._advantages, self._checkpoints, self._epochs = advantages, checkpoints, epochs
        self._saved: int | None = None  # the newest step whose state this process has written
        self.metrics: dict[str, float] = {}
        added = _checked(self._signals)
        self.device_arrays = {n: s for n, s in added.items() if n not in ADVANTAGE_INPUTS}
        self._computes = bool(added.keys() & ADVANTAGE_INPUTS.keys())
        self.terms = _terms(self._signals)
        self.warm_up_steps = max((s.warm_up_steps for s in self._signals.values()), default=0)

    def start(self, model: ModelView, step: int) -> None:
        """Starts the signals, and restores their states; to be called before the first step.

        Args:
          step: of the checkpoint that the trainer restored; 0: it starts from its first weights.

        Raises:
          TrainingError: the state of a signal is missing or damaged.
        """
        for name, signal in self._signals.items():
            with _named(name, step):
                signal.start(model)
                if step:
                    signal.restore(step, SignalState(self._files, step, name))

    def complete(
        self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns the batch with the arrays of the signals and the advantages based on them.

        The signals then learn from the completed batch.

        Args:
          model: its weights are version ``step - 1``.
          step: counts from 1; once per step.
          batch: of ``training.objective.batches``, the whole batch of the step.

        Raises:
          TrainingError: a signal returned other arrays than it declares, or an array that is not
            finite at a trained token; the advantages are not finite; or a metric is not finite, or
            has another name than ``objective/<name>``.
        """
        completed = dict(batch)
        for name, signal in self._signals.items():
            with _named(name, step):
                found = signal.complete(model, step, _read_only(completed))
            completed |= _checked_arrays(name, signal, found, step, completed)
        own = self._with_advantages(completed) if self._computes else {}
        self.metrics = {name: total * self._epochs for name, total in own.items()}
        for name, signal in self._signals.items():
            with _named(name, step):
                signal.learn(model, step, _read_only(completed))
            self.metrics |= _checked_metrics(name, signal.metrics, step)
        return completed

    def _with_advantages(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Replaces the advantages of a batch; returns their metrics."""
        given = (batch, batch.get(TOKEN_REWARDS), batch.get(VALUES), batch.get(FINAL_VALUES))
        found_bt = of_batch(self._advantages, *given)
        batch["rl_advantages"] = found_bt.astype(ARRAYS["rl_advantages"].dtype)
        trained_bt = batch["rl_mask"] > 0
        trained_n = found_bt[trained_bt]
        means = {"advantage": trained_n, "advantage_abs": np.abs(trained_n)}
        spread: dict[str, float] = {}
        if VALUES in batch:
            batch[RETURNS] = of_batch(partial(returns_of, self._advantages), *given)
            value_n, returns_n = batch[VALUES][trained_bt], batch[RETURNS][trained_bt]
            means |= {"value": value_n, "returns": returns_n}
            spread = spread_of(value_n, returns_n)
        return {f"objective/{name}": float(n.sum()) for name, n in means.items()} | spread

    def save(self, step: int) -> None:
        """Writes the state of all signals; to be called before the trainer's checkpoint of a step.

        Raises:
          RlaxError: it cannot be written.
        """
        if not self._signals:
            return
        for name, signal in self._signals.items():
            with _named(name, step):
                signal.save(step, SignalState(self._files, step, name))
        reached(FaultPoint.SIGNALS_WRITTEN)
        # The checkpoint before this one may still be on its way.
        keep = {step} if self._saved is None else {step, self._saved}
        self._saved = step
        prune(self._files, self._checkpoints(), keep)


def _checked(signals: Mapping[str, BatchSignal]) -> dict[str, ArraySpec]:
    """Returns name -> spec of every array that the signals add."""
    owner = dict.fromkeys(ARRAYS | HOST_ARRAYS, "the batch")
    added: dict[str, ArraySpec] = {}
    for signal_name, signal in signals.items():
        if not re.fullmatch(r"\w+", signal_name):  # it names the folder of its state
            raise TrainingError(
                f"a signal is named {signal_name!r}: names consist of letters, digits and _"
            )
        for name, spec in signal.arrays.items():
            if name in owner and name != TOKEN_REWARDS:
                raise TrainingError(
                    f"signal {signal_name!r} adds {name}, which {owner[name]} has already"
                )
            if (expected := ADVANTAGE_INPUTS.get(name, spec)) != spec:
                raise TrainingError(
                    f"signal {signal_name!r} adds {name} as {spec}, expected {expected}"
                )
            owner[name], added[name] = f"signal {signal_name!r}", spec
    return added


def _terms(signals: Mapping[str, BatchSignal]) -> dict[str, LossTerm]:
    found: dict[str, LossTerm] = {}
    for name, signal in signals.items():
        if both := found.keys() & signal.terms.keys():
            raise TrainingError(
                f"signal {name!r} adds the term {min(both)!r} to the loss, as another signal does"
            )
        found |= signal.terms
    return found


@contextmanager
def _named(name: str, step: int) -> Iterator[None]:
    """Has an error name the signal that caused it."""
    where = f"signal {name!r}, step {step}"
    try:
        yield
    except TrainingError as error:
        raise TrainingError(f"{where}: {error}") from error
    except Exception as error:
        error.add_note(f"in {where}")
        raise


def _read_only(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns views of the arrays: a signal that changed them would change what is trained on."""
    views = {name: array.view() for name, array in batch.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _checked_metrics(
    name: str, metrics: Mapping[str, tuple[float, float]], step: int
) -> dict[str, float]:
    """Returns the metrics of a signal as sums; they are reported under ``objective/`` only."""
    found: dict[str, float] = {}
    for metric, given in metrics.items():
        if not metric.startswith(_METRICS):
            raise TrainingError(
                f"signal {name!r} has a metric {metric!r}, expected {_METRICS}<name>"
            )
        if not isinstance(given, Sequence) or len(given) != 2:
            raise TrainingError(f"{metric} of signal {name!r} is {given!r}, expected (sum, weight)")
        total, weight = map(float, given)
        if not np.isfinite([total, weight]).all() or weight < 0:
            raise TrainingError(f"step {step}: {metric} of signal {name!r} is {total} / {weight}")
        found |= mean(metric.removeprefix(_METRICS), total, weight)
    return found


def _checked_arrays(
    name: str, signal: BatchSignal, arrays: Arrays, step: int, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns what a signal adds to the batch."""
    if not isinstance(arrays, Mapping) or arrays.keys() != signal.arrays.keys():
        returned = list(arrays) if isinstance(arrays, Mapping) else arrays
        raise TrainingError(
            f"step {step}: signal {name!r} returned {returned!r}, expected {sorted(signal.arrays)}"
        )
    found = {n: np.asarray(a) for n, a in arrays.items()}
    rows, length = batch["rl_mask"].shape
    for array, spec in signal.arrays.items():
        if wrong := spec.mismatch(found[array], rows, length):
            raise TrainingError(f"step {step}: {array} of signal {name!r} is {wrong}")
        # An error of the advantages or the loss could name neither the array nor the signal.
        read_n = found[array][batch["rl_mask"] > 0]
        finite_n = np.isfinite(read_n).reshape(len(read_n), -1).all(axis=1)
        if wrong := len(read_n) - np.count_nonzero(finite_n):
            raise TrainingError(
                f"step {step}: {array} of signal {name!r} is NaN or infinite at {wrong} of "
                f"{len(read_n)} trained tokens"
            )
    if TOKEN_REWARDS in found and TOKEN_REWARDS in batch:
        found[TOKEN_REWARDS] = batch[TOKEN_REWARDS] + found[TOKEN_REWARDS]
    return found
