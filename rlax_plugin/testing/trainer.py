"""Trainer ``bigram``: REINFORCE on the bigram policy, with checkpoints, on one CPU core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_plugin.base.errors import ConfigError, RlaxError, alternatives
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.packing import pack, unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Canary, Descent
from rlax_plugin.config import YEAR_S, PositiveInt, Section
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Conversion, Trainer, TrainerPort
from rlax_plugin.testing import policy
from rlax_plugin.testing.model import BigramView
from rlax_plugin.testing.running_value import RunningValue, less_value
from rlax_plugin.testing.task import VOCABULARY, check_vocabulary
from rlax_plugin.training.objective.advantages import AdvantageSlot
from rlax_plugin.training.objective.batches import temperature_of
from rlax_plugin.training.objective.diagnostics import (
    GAP_BINS,
    GAP_DEPTHS,
    GAP_EDGES,
    GROUP_GAPS,
    GROUP_PLACES,
)
from rlax_plugin.training.objective.loss import resolve
from rlax_plugin.training.signals.chain import SignalChain
from rlax_plugin.training.signals.chosen_signals import chosen_signals
from rlax_plugin.training.signals.signal import BatchSignal

# Outside ``rlax:``, the run's own; a base file of MaxText's may be named, and is not read.
_KEYS = ("steps", "run_name", "base_output_directory", "base_config")
CANARY_TOLERANCE = 1e-4  # nats; the same code on another machine differs by 1e-6


class BigramConfig(Section):
    """Trains a toy bigram policy with plain REINFORCE, without JAX.

    It uses the advantages of rlax.objective, unless running_value is set, and ignores the other
    slots. It shows its model to the signals that the config lists.
    """

    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="step size of plain gradient descent; 10 learns the task in ten steps",
    )
    checkpoint_every: PositiveInt = Field(
        default=5,
        description="number of steps between checkpoints; the last step also writes a checkpoint",
    )
    running_value: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0,
        description="weight of the newest group in an exponential mean of the rewards of each "
        "prompt; above 0, the advantage of a sample is its reward less the mean before this batch",
    )
    train_s: Annotated[float, Field(ge=0, le=YEAR_S)] = Field(
        default=0.0, description="additional time per training step"
    )


class Checkpoints:
    """``checkpoints/<step>.npz`` in the run's directory; writing the file is the commit."""

    def __init__(self, files: RunFiles):
        self._files = files

    def save(self, step: int, weights: policy.Weights) -> None:
        self._files.put(f"checkpoints/{step}.npz", pack(weights))

    def newest(
        self, found_damaged: Callable[[str], object]
    ) -> tuple[int, dict[str, np.ndarray]] | None:
        """Step and weights of the newest readable checkpoint; None if there is none."""
        for step, name in sorted(self.names().items(), reverse=True):
            try:
                return self.read(name)
            except (OSError, ValueError, RlaxError) as error:
                why = f"the checkpoint of step {step} cannot be read: {error}"
                found_damaged(f"{why}. The one before it counts")
        return None

    def names(self) -> dict[int, str]:
        """Step -> name of its file."""
        names = [n for n in self._files.names("checkpoints") if n.endswith(".npz")]
        return {int(name.removesuffix(".npz")): name for name in names}

    def read(self, name: str) -> tuple[int, dict[str, np.ndarray]]:
        """Step and weights of a checkpoint."""
        weights = unpack(self._files.get(f"checkpoints/{name}"))
        return int(name.removesuffix(".npz")), weights


class BigramTrainer(Trainer):
    """Trains a toy model, a table of the log-probs of each token after each other one.

    It calls the port in the order of MaxText's loop. Its gradient is that of REINFORCE, in one
    update per batch: of ``rlax.objective`` it uses the advantages and ignores the other slots. The
    advantages are those of the controller, or of ``running_value`` if that option is set.

    Args:
      files: the run's directory.
      steps: the last step to train.
      seed: seed of the initial weights.
      temperature: see ``batches.temperature_of``; above 0 to train.
      signals: name -> signal; ``running_value`` is added if its option is set.
      advantages: slot for values that signals give, unless ``running_value`` is set.
      rounds: True if the published table is bfloat16.

    Raises:
      ConfigError: a signal adds a term to the loss.
    """

    takes_signals = True
    takes_shared_prompts = True
    rounds_weights = True
    keeps_checkpoints = True
    converts_versions = True
    vocabulary = VOCABULARY

    def __init__(
        self,
        config: BigramConfig,
        files: RunFiles,
        *,
        steps: int,
        seed: int,
        temperature: float | None,
        signals: Mapping[str, BatchSignal] = MappingProxyType({}),
        advantages: AdvantageSlot = less_value,
        rounds: bool = False,
    ):
        self._dtypes = policy.version_dtypes(rounds)
        self._config, self._steps = config, steps
        self._seed, self._temperature = seed, temperature
        self._checkpoints = Checkpoints(files)
        own = {"running_value": RunningValue(rate)} if (rate := config.running_value) else {}
        self._signals = SignalChain(
            own | dict(signals),
            files,
            less_value if own else advantages,
            checkpoints=self._checkpoints.names,
        )
        if terms := self._signals.terms:
            reason = f"add {sorted(terms)} to the loss, which trainer bigram cannot"
            raise ConfigError("rlax.signals", sorted(signals), reason)
        self._descent: Descent | None = None

    @classmethod
    def build(cls, config: BigramConfig, context: BuildContext) -> BigramTrainer:
        """The trainer of a run; ``steps`` is MaxText's own key.

        Raises:
          ConfigError: see ``check``.
        """
        cls.check(config, context)
        signals: dict[str, BatchSignal] = {}
        advantages = less_value
        if context.section.signals:
            advantages = resolve(context.section, context.part).advantages
            signals = chosen_signals(context, advantages)
        return cls(
            config,
            RunFiles(context.run_url),
            steps=int(context.maxtext["steps"]),
            seed=context.seed,
            temperature=context.section.rollouts.only_temperature,
            signals=signals,
            advantages=advantages,
            rounds=context.section.weights.rounded,
        )

    @staticmethod
    def check(config: BigramConfig, context: BuildContext) -> None:
        """See ``Extension``.

        Raises:
          ConfigError: several updates per step, a key outside ``rlax:`` that it does not read, or
            prompts of another vocabulary.
        """
        section = context.section
        for key in ("epochs", "mini_batches"):
            if (given := getattr(section.objective, key)) != 1:
                reason = "must be 1 with trainer bigram, which updates once per step"
                raise ConfigError(f"rlax.objective.{key}", given, reason)
        for key, value in context.maxtext.items():
            if key not in _KEYS:
                reason = f"trainer bigram reads no such key; {alternatives(key, _KEYS)}"
                raise ConfigError(key, value, reason)
        check_vocabulary(context)

    def run(self, port: TrainerPort) -> None:
        start, weights = self._checkpoints.newest(port.found_damaged) or (0, self.first_weights())
        model = BigramView(weights, start, self._temperature)
        self._signals.start(model, start)
        _publish(port, start, weights, self._dtypes)
        for step in range(start + 1, self._steps + 1):
            model.show(weights, step - 1)
            batch = self._signals.complete(model, step, port.next_batch(step))
            updated, metrics = self._update(weights, batch)
            if step > self._signals.warm_up_steps:
                weights = updated
            reached(FaultPoint.STEP_TRAINED)
            due = step % self._config.checkpoint_every == 0 or step == self._steps
            if due:
                self._checkpoint(port, step, weights)
            _publish(port, step, weights, self._dtypes)
            port.step_done(step, self._signals.metrics | metrics)
            decision = port.decide(step)
            if decision.save and not due:
                self._checkpoint(port, step, weights)
            if decision.stop:
                return

    def checkpoints(self) -> dict[int, str]:
        """See ``Trainer``."""
        return self._checkpoints.names()

    def start_from(self, descent: Descent) -> None:
        """See ``Trainer``.

        Raises:
          ConfigError: there is no own checkpoint, and the other one is missing or damaged.
        """
        self._descent = descent
        if not self._checkpoints.names():
            self.first_weights()

    def first_weights(self) -> dict[str, np.ndarray]:
        if (descent := self._descent) is None:
            return policy.initial_weights(self._seed)
        try:
            _, weights = Checkpoints(RunFiles(descent.run)).read(descent.checkpoint)
        except FileNotFoundError:
            reason = "no longer exists, and this run has no checkpoint of its own yet"
            raise ConfigError("--from", str(descent), reason) from None
        except (OSError, ValueError, RlaxError) as error:
            raise ConfigError("--from", str(descent), f"cannot be read: {error}") from error
        shapes = {name: array.shape for name, array in weights.items()}
        if shapes != policy.SHAPES:
            reason = f"holds another model's weights: {shapes}, expected {policy.SHAPES}"
            raise ConfigError("--from", str(descent), reason)
        return weights

    def publish_checkpoint(self, port: TrainerPort, name: str) -> None:
        """See ``Trainer``."""
        _publish(port, *self._checkpoints.read(name), self._dtypes)

    def publish_first(self, port: TrainerPort) -> None:
        """See ``Trainer``."""
        _publish(port, 0, self.first_weights(), self._dtypes)

    def converter(self) -> Conversion:
        """See ``Trainer``."""
        return policy.write_converted

    def _update(
        self, weights: policy.Weights, batch: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """New weights in new buffers, and the step's metric sums for ``diagnostics.summarise``."""
        time.sleep(self._config.train_s)
        temperature = temperature_of(batch, self._temperature)
        gradient, logprobs_n = policy.reinforce(weights, batch, temperature)
        rate = np.float32(self._config.learning_rate)
        updated = {name: weight - rate * gradient[name] for name, weight in weights.items()}
        return updated, _metric_sums(batch, logprobs_n)

    def _checkpoint(self, port: TrainerPort, step: int, weights: policy.Weights) -> None:
        self._signals.save(step)
        port.before_checkpoint(step)
        self._checkpoints.save(step, weights)
        reached(FaultPoint.CHECKPOINT_WRITTEN)


def _publish(
    port: TrainerPort, step: int, weights: policy.Weights, dtypes: Mapping[str, np.dtype[Any]]
) -> None:
    published = {name: array.astype(dtypes[name]) for name, array in weights.items()}
    tokens = port.canary_tokens
    canary = None
    if len(tokens) > 1:
        canary = Canary(tokens, policy.sequence_log_probs(published, tokens), CANARY_TOLERANCE)
    port.publish(step, published, canary)


def _metric_sums(batch: Mapping[str, np.ndarray], logprobs_n: np.ndarray) -> dict[str, Any]:
    trained_bt = batch["rl_mask"] > 0
    behaviour_n = batch["rl_behaviour_logprobs"][trained_bt]
    weight_n = np.exp(logprobs_n - behaviour_n)
    row_n, _ = np.nonzero(trained_bt)
    sequence_n = np.stack((row_n, batch["targets_segmentation"][trained_bt]))
    fresh_n = batch["rl_staleness"][trained_bt] == 1
    gap_of_each_n = np.abs(logprobs_n - behaviour_n)
    gap_n = gap_of_each_n[fresh_n]
    depth_n = batch["targets_position"][trained_bt][fresh_n] + 1
    row_of_n = np.searchsorted(GAP_DEPTHS, depth_n, side="right") - 1
    gap_hist = np.zeros((len(GAP_DEPTHS), GAP_BINS), int)
    np.add.at(gap_hist, (row_of_n, np.searchsorted(GAP_EDGES[:-1], gap_n)), 1)
    return {
        "tokens": logprobs_n.size,
        "sequences": np.unique(sequence_n, axis=1).shape[1],
        "objective/entropy": -logprobs_n.sum(),
        "behaviour/w": weight_n.sum(),
        "behaviour/w2": (weight_n**2).sum(),
        "behaviour/logprob": logprobs_n.sum(),
        "behaviour/behaviour_logprob": behaviour_n.sum(),
        "gap_count": gap_n.size,
        "gap_sum": gap_n.sum(),
        "gap_hist": gap_hist,
        **_group_gaps(batch, trained_bt, gap_of_each_n),
    }


def _group_gaps(
    batch: Mapping[str, np.ndarray], trained_bt: np.ndarray, gap_n: np.ndarray
) -> dict[str, np.ndarray]:
    if "rl_group" not in batch:
        return {}
    place_n = np.minimum(batch["rl_group"][trained_bt], GROUP_PLACES)
    sums = (np.bincount(place_n, x, GROUP_PLACES)[:GROUP_PLACES] for x in (gap_n, None))
    return dict(zip(GROUP_GAPS, sums, strict=True))
