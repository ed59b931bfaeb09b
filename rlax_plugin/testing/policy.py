"""A bigram language model in numpy: trains in microseconds, and is nevertheless a real policy.

    logits_v = table[previous token, v] * scale[v] + bias[v]

All functions keep the dtype of the weights. Sums run in an order that does not depend on how many
rows are computed at once, so trainer and engine get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rlax_plugin.base.types import SamplingParams
from rlax_plugin.testing.task import STOP, VOCABULARY

Weights = Mapping[str, np.ndarray]

FILE, CONVERTED = "model.safetensors", "model."
# Two tensors of equal shape, so that a test can swap them.
SHAPES: dict[str, tuple[int, ...]] = {
    "table": (VOCABULARY, VOCABULARY),
    "scale": (VOCABULARY,),
    "bias": (VOCABULARY,),
}


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """float32 weights of a nearly uniform policy that stops with a probability of about 0.1."""
    rng = np.random.default_rng(seed)
    weights = {
        name: (0.1 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    weights["scale"] += np.float32(1.0)
    weights["bias"][STOP] += np.float32(2.0)
    return weights


def version_dtypes(rounds: bool) -> dict[str, np.dtype[Any]]:
    """The dtypes of a weight version; ``rounds`` rounds the table to bfloat16."""
    dtypes = {name: np.dtype(np.float32) for name in SHAPES}
    return dtypes | ({"table": np.dtype(ml_dtypes.bfloat16)} if rounds else {})


def write_converted(
    weights: Weights, directory: Path, wrote: Callable[[str, np.ndarray], None]
) -> None:
    """Writes ``model.safetensors``, with other names than the trainer's; see ``Conversion``."""
    from safetensors.numpy import save_file

    tensors = {f"{CONVERTED}{name}": np.asarray(array) for name, array in weights.items()}
    for name, tensor in tensors.items():
        wrote(name, tensor)
    save_file(tensors, directory / FILE)


def read_converted(directory: Path) -> dict[str, np.ndarray]:
    """What ``write_converted`` has written.

    Raises:
      OSError, SafetensorError: it cannot be read.
    """
    from safetensors.numpy import load_file

    return load_file(directory / FILE)


Temperature = float | np.ndarray
"""A divisor of logits, above 0: of all of them, or float32, one for each token."""


def log_probs(
    weights: Weights, previous_n: np.ndarray, temperature: Temperature = 1.0
) -> np.ndarray:
    """Log-probabilities of every next token, nats.

    Args:
      previous_n: int [n], the previous tokens.
      temperature: of all tokens, or [n].

    Returns:
      [n, vocabulary].
    """
    table_nv = weights["table"][previous_n]
    if table_nv.dtype == ml_dtypes.bfloat16:
        table_nv = table_nv.astype(np.float32)
    logits_nv = table_nv * weights["scale"] + weights["bias"]
    logits_nv /= _of_rows(temperature)
    logits_nv -= logits_nv.max(axis=-1, keepdims=True)
    logits_nv -= np.log(np.exp(logits_nv).sum(axis=-1, keepdims=True))
    return logits_nv


def _of_rows(temperature: Temperature) -> Temperature:
    return temperature[:, None] if isinstance(temperature, np.ndarray) else temperature


def sequence_log_probs(weights: Weights, tokens: np.ndarray) -> np.ndarray:
    """A canary's log-probs [n] at temperature 1 of ``tokens[1:]``, each given the previous token.

    Args:
      tokens: int [n + 1].
    """
    return np.take_along_axis(log_probs(weights, tokens[:-1]), tokens[1:, None], axis=-1)[:, 0]


def reinforce(
    weights: Weights, batch: Mapping[str, np.ndarray], temperature: Temperature = 1.0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The gradient of REINFORCE's loss, ``-sum(advantage * log pi) / tokens``.

    Source: Williams, 1992, https://doi.org/10.1007/BF00992696.

    Args:
      batch: arrays of ``rlax_plugin.training.objective.batches``.
      temperature: of all tokens, or [rows, length].

    Returns:
      name -> gradient, shaped like the weights; zero if no token trains. And the log-probs [n] of
      the n trained tokens, in row-major order.
    """
    trained_bt = batch["rl_mask"] > 0
    previous_n, target_n = batch["inputs"][trained_bt], batch["targets"][trained_bt]
    if isinstance(temperature, np.ndarray):
        temperature = temperature[trained_bt]
    logprobs_nv = log_probs(weights, previous_n, temperature)
    place_n = np.arange(target_n.size)
    dtype = logprobs_nv.dtype
    factor_n = batch["rl_advantages"][trained_bt].astype(dtype) / max(target_n.size, 1)
    # d log pi(target) / d logits = (onehot - pi) / temperature
    slope_nv = np.exp(logprobs_nv)
    slope_nv[place_n, target_n] -= 1
    slope_nv *= factor_n[:, None]
    slope_nv /= _of_rows(temperature)
    table = np.zeros(SHAPES["table"], dtype)
    np.add.at(table, previous_n, slope_nv * weights["scale"])
    gradient = {
        "table": table,
        "scale": (slope_nv * weights["table"][previous_n]).sum(axis=0),
        "bias": slope_nv.sum(axis=0),
    }
    return gradient, logprobs_nv[place_n, target_n]


def uniform(seed: int, place: int) -> float:
    """The random number in [0, 1) of a sample's token; a function of the arguments only.

    Args:
      seed: seed of the sample, 64 bits.
      place: place of the token in its completion, from 0.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=place)).random()


def choose(
    logprobs_v: np.ndarray, uniform: float, sampling: SamplingParams
) -> tuple[int, float, float]:
    """Samples a token by inverting the cumulative distribution; top-k first, then top-p.

    Args:
      logprobs_v: [vocabulary], temperature applied (1 where it is 0).
      uniform: in [0, 1).

    Returns:
      the token, its log-prob, and that of the truncated distribution.
    """
    if sampling.temperature == 0:
        token = int(logprobs_v.argmax())
        return token, float(logprobs_v[token]), 0.0
    probability_v = np.exp(logprobs_v.astype(np.float64))
    if sampling.truncates:
        probability_v *= _kept(probability_v, sampling)
    sums_v = probability_v.cumsum()
    total = sums_v[-1]
    target = min(uniform * total, np.nextafter(total, 0.0))  # rounding may reach the total
    token = int(np.searchsorted(sums_v, target, side="right"))
    full = float(logprobs_v[token])
    return token, full, full - float(np.log(total)) if sampling.truncates else full


def _kept(probability_v: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Mask of the tokens kept by top-k and top-p; among equal ones the lower id comes first."""
    order = np.argsort(-probability_v, kind="stable")
    order = order[: sampling.top_k] if sampling.top_k > 0 else order
    sums = probability_v[order].cumsum()
    before = sums - probability_v[order]
    inside = before < sampling.top_p * sums[-1]
    inside[0] = True
    kept_v = np.zeros(probability_v.shape, dtype=bool)
    kept_v[order[inside]] = True
    return kept_v
