"""The signals ``critic`` and ``value_head``: values for advantages, and learning from returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlax_maxtext.critic.loss import CLIPPED, token_weights, value_loss
from rlax_maxtext.critic.options import CriticConfig, Learning, ValueHeadConfig
from rlax_plugin.api import (
    ADVANTAGE_INPUTS,
    BatchSignal,
    BuildContext,
    Learner,
    ModelView,
    SignalState,
    ValueModel,
    ValueModelChoice,
    completions,
)

Arrays = dict[str, np.ndarray]
Gradient = Callable[[Mapping[str, np.ndarray], Any, Mapping[str, Any]], Any]

_VALUES, _FINAL = "rl_values", "rl_final_values"
_READ = (  # by a model; the last one only if the temperature is a schedule
    *("inputs", "inputs_position", "inputs_segmentation"),
    *("targets", "targets_position", "targets_segmentation"),
    "rl_temperature",
)


def config_key(context: BuildContext, name: str) -> str:
    """Returns the config key of a signal that a config lists."""
    names = [choice.plain_name for choice in context.section.signals]
    return f"rlax.signals.{names.index(name)}" if name in names else "rlax.signals"


class _Critic(BatchSignal):
    """Values before each token of a batch and behind the last token of truncated episodes.

    Args:
      learning: options of its updates.
      seed: decides, with the step, which rows a mini-batch has.

    Attributes:
      metrics: ``objective/value_loss``, over all updates with the batch, each counted by its
        tokens; and ``objective/value_clipped``, the share of tokens whose clipped value counts.
    """

    def __init__(self, learning: Learning, seed: int):
        self._learning, self._seed = learning, seed
        self._loss = value_loss(learning.clip)
        self.arrays = {name: ADVANTAGE_INPUTS[name] for name in (_VALUES, _FINAL)}
        self.warm_up_steps = learning.warm_up_steps

    def _values(self, model: ModelView, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns float32 [rows, length]: the value of the state before each target."""
        raise NotImplementedError

    def _update(
        self, model: ModelView, batch: Mapping[str, np.ndarray], weight: float
    ) -> tuple[float, dict[str, float]]:
        """Takes one step of the optimizer; see ``ValueModel.update``."""
        raise NotImplementedError

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        found = {
            _VALUES: self._values(model, batch).astype(np.float64),
            _FINAL: np.zeros(batch["inputs"].shape),
        }
        cut = cut_states(batch)
        if cut.ends.size:
            values_nt = self._values(model, cut.rows)
            found[_FINAL][cut.at] = values_nt[np.arange(cut.ends.size), cut.ends]
        return found

    def learn(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> None:
        learning = self._learning
        mask_bt, segmentation_bt = batch["rl_mask"], batch["targets_segmentation"]
        arrays = {name: batch[name] for name in _READ if name in batch} | {
            "weights": token_weights(learning.aggregation, mask_bt, segmentation_bt),
            "returns": batch["rl_returns"].astype(np.float32),
            "old_values": batch[_VALUES].astype(np.float32),
        }
        value_loss = clipped = 0.0
        for rows_b in self._mini_batches(step, len(mask_bt)):
            part = {name: array[rows_b] for name, array in arrays.items()}
            if weight := float(part["weights"].sum(dtype=np.float64)):
                loss, sums = self._update(model, part, weight)
                value_loss += loss / weight * np.count_nonzero(part["weights"])
                clipped += sums[CLIPPED]
        learned = learning.epochs * float(np.count_nonzero(batch["rl_mask"]))
        self.metrics = {
            "objective/value_loss": (value_loss, learned),
            "objective/value_clipped": (clipped, learned),
        }

    def _mini_batches(self, step: int, rows: int) -> Iterator[np.ndarray]:
        """Yields the rows of each update of a step."""
        for epoch in range(self._learning.epochs):
            order_b = np.arange(rows)
            if self._learning.mini_batches > 1:
                order_b = np.random.default_rng((self._seed, step, epoch)).permutation(rows)
            yield from np.array_split(order_b, self._learning.mini_batches)


class Critic(_Critic):
    """A critic with weights of its own.

    Args:
      key: its config key.
    """

    def __init__(self, config: CriticConfig, seed: int, key: str):
        super().__init__(config, seed)
        self._choice = ValueModelChoice(
            config.start, config.model, config.optimizer, f"{key}.start", f"{key}.model"
        )
        self._model: ValueModel | None = None

    @classmethod
    def build(cls, config: CriticConfig, context: BuildContext) -> Critic:
        """The critic of a run."""
        return cls(config, context.seed, config_key(context, "critic"))

    def start(self, model: ModelView) -> None:
        self._model = model.value_model(self._choice)

    @property
    def _own(self) -> ValueModel:
        assert self._model is not None, "start comes first"
        return self._model

    def _values(self, model: ModelView, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._own.values(batch)

    def _update(
        self, model: ModelView, batch: Mapping[str, np.ndarray], weight: float
    ) -> tuple[float, dict[str, float]]:
        return self._own.update(batch, self._loss, weight)

    def save(self, step: int, state: SignalState) -> None:
        self._own.save(state.location("model"))

    def restore(self, step: int, state: SignalState) -> None:
        self._own.restore(state.location("model"))


class ValueHead(_Critic):
    """A linear head on the policy's features, which gets no gradient from it."""

    def __init__(self, config: ValueHeadConfig, seed: int):
        super().__init__(config, seed)
        self._optimizer = config.optimizer
        self._learner: Learner | None = None
        self._gradient: Gradient | None = None

    @classmethod
    def build(cls, config: ValueHeadConfig, context: BuildContext) -> ValueHead:
        """The head of a run."""
        return cls(config, context.seed)

    def start(self, model: ModelView) -> None:
        import jax
        import jax.numpy as jnp

        (width,) = model.outputs["features"].trailing
        head = {"kernel": np.zeros(width, np.float32), "bias": np.zeros((), np.float32)}
        self._learner = Learner(self._optimizer, head)

        def sums(head: Any, features_bte: Any, data: Any) -> Any:
            features_bte = jnp.where(data["weights"][..., None] > 0, features_bte, 0.0)
            return self._loss(_linear(features_bte, head), data)

        self._gradient = jax.jit(jax.value_and_grad(sums, has_aux=True))

    @property
    def _head(self) -> Learner:
        assert self._learner is not None, "start comes first"
        return self._learner

    def _values(self, model: ModelView, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = model.parts(batch, ["features"])
        found = [_linear(part.outputs["features"], self._head.params) for part in parts]
        return np.concatenate([np.asarray(values_bt) for values_bt in found])

    def _update(
        self, model: ModelView, batch: Mapping[str, np.ndarray], weight: float
    ) -> tuple[float, dict[str, float]]:
        assert self._gradient is not None, "start comes first"
        total, slopes = np.zeros(2), {n: np.zeros_like(a) for n, a in self._head.params.items()}
        for part in model.parts(batch, ["features"]):
            data = {name: part.batch[name] for name in ("weights", "returns", "old_values")}
            features_bte = part.outputs["features"]
            (loss, sums), slope = self._gradient(self._head.params, features_bte, data)
            total += np.array([loss, sums[CLIPPED]])
            slopes = {name: slopes[name] + np.asarray(slope[name]) for name in slopes}
        self._head.update({n: (a / weight).astype(a.dtype) for n, a in slopes.items()})
        return float(total[0]), {CLIPPED: float(total[1])}

    def save(self, step: int, state: SignalState) -> None:
        self._head.save(state)

    def restore(self, step: int, state: SignalState) -> None:
        self._head.restore(state)


def _linear(features_bte: Any, head: Mapping[str, Any]) -> Any:
    import jax.numpy as jnp

    features_bte = jnp.asarray(features_bte).astype(jnp.float32)
    return jnp.einsum("bte,e->bt", features_bte, head["kernel"]) + head["bias"]


_SIDES = ("inputs", "targets")
_TEMPERATURE = "rl_temperature"  # which a model may read, though no value depends on it


class CutStates(NamedTuple):
    """Rows that end with the last token of a truncated episode, which no row of a batch has.

    A row of a batch has no position behind its last token, and in a packed row another sequence
    begins there; so each of these sequences is laid out again, alone in a row.

    Attributes:
      at: (rows, positions) in the batch of the last tokens.
      rows: name -> [states, length], MaxText's six arrays, and the temperature if the batch has it.
      ends: position in its row of each state.
    """

    at: tuple[np.ndarray, np.ndarray]
    rows: dict[str, np.ndarray]
    ends: np.ndarray


def cut_states(batch: Mapping[str, np.ndarray]) -> CutStates:
    """Returns the states behind the last tokens of all truncated episodes of a batch.

    Args:
      batch: of ``training.objective.batches``.
    """
    length = batch["inputs"].shape[1]
    last = [(rows[-1], t[-1]) for rows, t in completions(batch)]
    at = [place for place in last if batch["rl_truncated"][place]]
    names = [f"{side}{suffix}" for side in _SIDES for suffix in ("", "_position", "_segmentation")]
    found = {name: np.zeros((len(at), length), np.int32) for name in names}
    ends = np.zeros(len(at), int)
    for index, (row, t) in enumerate(at):
        own_t = batch["inputs_segmentation"][row] == batch["targets_segmentation"][row, t]
        tokens = np.append(batch["inputs"][row, own_t.argmax() : t + 1], batch["targets"][row, t])
        ends[index] = tokens.size - 1
        found["inputs"][index, : tokens.size] = tokens
        for side in _SIDES:
            found[f"{side}_position"][index] = np.arange(length)
            found[f"{side}_segmentation"][index, : tokens.size] = 1
    if _TEMPERATURE in batch:
        found[_TEMPERATURE] = np.ones((len(at), length), batch[_TEMPERATURE].dtype)
    rows, positions = np.array(at, int).reshape(-1, 2).T
    return CutStates((rows, positions), found, ends)
