"""The states in which truncated episodes were cut, whose values a critic gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlax_plugin.api import completions

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
