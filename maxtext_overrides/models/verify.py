"""Verifies a conversion (``rlax convert --verify``) against transformers' results for the source.

transformers computes before anything is written, in a process of its own. Once the model is
written, MaxText's own model computes the same logits from it. Greedy answers are compared without
generating: if the best token is the answer's next one at every position, the answer is the same.

The prompt has at least 64 tokens and is longer than the model's window, if it has one, because a
wrong window changes nothing in shorter prompts. Its tokens are random. Its first 64 tokens are
computed once more at positions that are far apart, where a wrong scaling of the positions has a
larger effect.

Rounding weights to bfloat16 changes logits by more than is accepted, and says nothing about the
conversion. So weights written as bfloat16 are compared bit for bit with the rounded originals, and
the logits are computed with the weights before rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

from maxtext_overrides.config.loading import Config
from maxtext_overrides.models import checkpoint
from maxtext_overrides.models.agreement import loaded_model
from maxtext_overrides.models.asking_transformers import ask, has_torch
from maxtext_overrides.models.convert import Convertible
from maxtext_overrides.models.forward import EXACT, Forward
from maxtext_overrides.models.logits import Agreement, Expected, tolerance
from maxtext_overrides.models.reading import Checkpoint
from maxtext_overrides.models.tensors import DTYPES
from rlax_plugin.errors import ConfigError, TrainingError
from rlax_plugin.text.amounts import in_bytes

PROMPT, BEYOND, ANSWER, FAR = 64, 16, 16, 128
"""Sizes of the comparison, in tokens.

A prompt has at least ``PROMPT`` tokens, ``BEYOND`` of them past the sliding window. ``ANSWER``
tokens are decoded greedily; ``FAR`` is the distance between the positions of a prompt whose tokens
are far apart.
"""

_MOST_LOGITS = 1 << 26  # that are compared; of a model with many words, not those of all places
_KEY = "--verify"


class Verification:
    """The verification of one conversion.

    Args:
      found: the model, before anything of it is written.
      python: path of a Python with torch and transformers.

    Raises:
      ConfigError: the memory does not suffice, or there is no such Python.
      RlaxError: transformers cannot load or compute the model.
    """

    def __init__(self, found: Convertible, python: str):
        self._found = found
        self._keys = {**found.keys, **EXACT}
        self._config, _ = loaded_model(self._keys, found.source.where)
        if not has_torch(python):
            reason = "has no torch and transformers: --verify-python takes a Python that has them"
            raise ConfigError(_KEY, python, reason)
        self._ask(python)

    def compare(self, directory: Path) -> list[str]:
        """Compares the checkpoint that ``Convertible.write`` has written.

        Returns:
          A sentence that says what was compared.

        Raises:
          TrainingError: it is another model; names the figures.
        """
        longest = max(len(row.tokens) for row in self._rows)
        keys = {**self._keys, "max_target_length": longest}
        config, _ = loaded_model(keys, self._found.source.where)
        stored = Checkpoint(str(directory / checkpoint.ITEMS))
        forward = Forward(config, _Unrounded(stored, self._found))
        agreement = Agreement(self._tolerance)
        for row in self._rows:
            agreement.add(row, forward)
        if not agreement.holds():
            raise TrainingError(
                f"{_KEY}: what was written is not the model that {self._made_with} computes: "
                f"{agreement}. Nothing is kept"
            )
        said = f"verified with {self._made_with}: {agreement}"
        if self._found.dtype != "float32":
            said += f"; these are of the weights before they were rounded to {self._found.dtype}"
        return [said]

    def _ask(self, python: str) -> None:
        """Has transformers compute the logits to compare with."""
        vocab_size = self._config.vocab_size
        length = max(PROMPT, _window(self._config) + BEYOND)
        _check_memory(self._config, self._found.parameters, length + ANSWER)
        prompt = np.random.default_rng(0).integers(0, vocab_size, length)
        at = _places(length + ANSWER, vocab_size)
        far = self._far_positions()
        computed = ask(python, Path(self._found.source.where), prompt, ANSWER, at, far)
        self._made_with, self._tolerance = computed.made_with, tolerance(computed.rounding)
        tokens = np.concatenate([prompt, computed.answer])
        self._rows = [Expected(tokens=tokens, at=at, logits=computed.logits, answer=ANSWER)]
        if computed.far is not None:
            self._rows.append(
                Expected(
                    tokens=prompt[: len(far)],
                    positions=far,
                    at=np.arange(len(far)),
                    logits=computed.far,
                )
            )

    def _far_positions(self) -> np.ndarray:
        """Returns positions up to 8,064 or the model's last one; none if the window is shorter."""
        window = _window(self._config)
        count = PROMPT if window == 0 or window >= PROMPT else 0
        step = max(1, min(FAR, self._found.architecture.positions // PROMPT))
        return np.arange(count) * step


class _Unrounded:
    """The weights of a checkpoint before rounding, recomputed from the source's tensors.

    Args:
      stored: the checkpoint.
      found: the model it was made from.
    """

    def __init__(self, stored: Checkpoint, found: Convertible):
        self._stored, self._found = stored, found
        self._variables = {variable.name: variable for variable in found.variables}
        self.shapes: Mapping[str, tuple[int, ...]] = stored.shapes

    def take(self, name: str) -> np.ndarray:
        """See ``StoredWeights``.

        Raises:
          TrainingError: the stored value is not the rounded one.
        """
        stored = self._stored.take(name)
        if self._found.dtype == "float32":
            return stored
        value = self._variables[name].of_tensors(self._found.source.read, DTYPES["float32"])
        if not np.array_equal(value.astype(stored.dtype), stored):
            reason = f"{name} was not written as its tensors are. Nothing is kept"
            raise TrainingError(f"{_KEY}: {reason}")
        return value


def _window(config: Config) -> int:
    """Returns the tokens in the window of a layer with one; 0 if no layer has a window."""
    return int(config.sliding_window_size or 0)


def _places(length: int, vocab_size: int) -> np.ndarray:
    """Returns the positions to compare: all, or as many of the first and last as is practical."""
    count = min(length, max(2 * ANSWER, _MOST_LOGITS // vocab_size))
    return np.r_[: count // 2, length - (count - count // 2) : length]


def _check_memory(config: Config, parameters: int, length: int) -> None:
    """Raises ConfigError if comparing needs more memory than is available.

    Either side has the weights in float32, of which XLA makes a copy, the logits of a row, and the
    scores of one layer's attention, of which some copies exist at a time.
    """
    weights = 2 * 4 * parameters
    logits = 2 * 4 * length * config.vocab_size
    scores = 3 * 4 * config.num_query_heads * length**2
    needed, free = weights + logits + scores, psutil.virtual_memory().available
    if needed > free:
        reason = (
            f"needs about {in_bytes(needed)} of memory to compute {length} tokens in float32, and "
            f"{in_bytes(free)} are free; without {_KEY}, converting needs much less"
        )
        raise ConfigError(_KEY, None, reason)
