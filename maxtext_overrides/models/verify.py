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

Both compute in float32, and differ by rounding only: by about 2e-5 at the first positions where
logits are a few nats. Both round the frequencies of rotary positions, each in its own way, and an
angle is a position times a frequency. So the difference grows with the position, to 1e-4 at 500,
7e-4 at 4000 and 2e-3 at 8000 in the worst of 21 models. ``TOLERANCE`` is accepted up to position
``EXACT_TO``, and grows in proportion beyond.

Rounding also adds up over layers: with 16 layers and a width of 1024, 1.5e-4 were found. There
transformers differed from itself by 1.2e-4, between all tokens at once and one by one. So a larger
model gets ``ROUNDINGS`` times the difference of transformers from itself, up to ``MOST``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from maxtext_overrides.config.loading import Config
from maxtext_overrides.models import checkpoint
from maxtext_overrides.models.agreement import loaded_model
from maxtext_overrides.models.convert import Convertible
from maxtext_overrides.models.forward import EXACT, Forward
from maxtext_overrides.models.reading import Checkpoint
from maxtext_overrides.models.tensors import DTYPES
from rlax_plugin.base.errors import ConfigError, RlaxError, TrainingError
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.text.harmless import one_line

PROMPT, BEYOND, ANSWER, FAR = 64, 16, 16, 128
"""Sizes of the comparison, in tokens.

A prompt has at least ``PROMPT`` tokens, ``BEYOND`` of them past the sliding window. ``ANSWER``
tokens are decoded greedily; ``FAR`` is the distance between the positions of a prompt whose tokens
are far apart.
"""

_MOST_LOGITS = 1 << 26  # that are compared; of a model with many words, not those of all places
_KEY = "--verify"

TOLERANCE, EXACT_TO = 2e-4, 128
"""Largest accepted difference of two float32 logits, in nats, and its last position."""

ROUNDINGS, MOST = 4, 2e-3


def tolerance(rounding: float) -> float:
    """Returns the tolerance for a model for which transformers' own ``rounding`` was measured."""
    return max(TOLERANCE, min(ROUNDINGS * rounding, MOST))


Computes = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""(tokens, at, positions) -> float32 [len(at), vocabulary]: see ``forward.Forward``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A row of tokens, and the logits that transformers computes for it.

    Attributes:
      tokens: [n].
      positions: [n] rotary positions of the tokens; None: 0, 1, 2, ...
      at: [k] positions in the row.
      logits: [k, vocabulary].
      answer: number of tokens at the end that are the greedy answer to those before.
    """

    tokens: np.ndarray
    positions: np.ndarray | None = None
    at: np.ndarray
    logits: np.ndarray
    answer: int = 0


@dataclass(slots=True)
class Agreement:
    """The agreement of two computations over all rows.

    Attributes:
      tolerance: accepted difference of two logits at the first positions.
      largest: largest difference found.
      share: largest ratio of a difference to the one accepted at its position.
      places: number of positions where logits were compared.
      best: number of these positions with the same best token.
      tokens: number of tokens of greedy answers.
      greedy: number of these tokens that are best here too.
      tied: positions where another token is best, by no more than two logits may differ.
    """

    tolerance: float = TOLERANCE
    largest: float = 0.0
    share: float = 0.0
    places: int = 0
    best: int = 0
    tokens: int = 0
    greedy: int = 0
    tied: int = 0

    def add(self, expected: Expected, forward: Computes) -> None:
        """Runs ``forward`` on one row, and adds its differences from ``expected`` to the totals."""
        length = len(expected.tokens)
        following = np.arange(length - expected.answer - 1, length - 1)
        at = np.concatenate([expected.at, following]).astype(np.int64)
        found = forward(expected.tokens, at, expected.positions)
        positions = np.arange(length) if expected.positions is None else expected.positions
        accepted = self.tolerance * np.maximum(positions[at] / EXACT_TO, 1.0)
        split = len(expected.at)
        differences = np.abs(found[:split] - expected.logits)
        shares = differences / accepted[:split, None]
        # The built-in max would lose NaN.
        self.largest = float(np.maximum(self.largest, differences.max(initial=0.0)))
        self.share = float(np.maximum(self.share, shares.max(initial=0.0)))
        self.places += split
        self.best += self._same(found[:split], expected.logits.argmax(1), accepted[:split])
        if expected.answer:
            self.tokens += expected.answer
            answer = expected.tokens[length - expected.answer :]
            self.greedy += self._same(found[split:], answer, accepted[split:])

    def _same(self, logits: np.ndarray, best: np.ndarray, accepted: np.ndarray) -> int:
        """Returns the number of given tokens that are the best, ties included."""
        lead = logits.max(1) - np.take_along_axis(logits, best[:, None].astype(int), 1)[:, 0]
        self.tied += int(((lead > 0) & (lead <= 2 * accepted)).sum())
        return int((lead <= 2 * accepted).sum())

    def holds(self) -> bool:
        """True if both computations are those of the same model."""
        same = self.best == self.places and self.greedy == self.tokens
        return self.share <= 1.0 and same

    def __str__(self) -> str:
        ties = f" ({self.tied} of them by a tie)" if self.tied else ""
        return (
            f"the largest difference of logits is {self.largest:.1e} ({self.share:.2g} of what is "
            f"accepted), and the best token is the same at {self.best} of {self.places} places and "
            f"{self.greedy} of {self.tokens} greedy tokens{ties}"
        )


_PROGRAM = Path(__file__).with_name("transformers_program.py")
_LOOK = """
import sys
from importlib.util import find_spec
sys.exit(not (find_spec("torch") and find_spec("transformers")))
"""
_LOOK_S, _PROGRAM_S = 60.0, 3600.0
_RAISED = re.compile(r"[A-Za-z_.]+(Error|Exception|Interrupt): ")


def has_torch(python: str) -> bool:
    """True if a Python has torch and transformers; neither is imported.

    Raises:
      ConfigError: there is no such Python.
      RlaxError: the Python does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="rlax-verify-") as name:
        return _run([python, "-c", _LOOK], name, _LOOK_S).returncode == 0


def ask(
    python: str, source: Path, prompt: np.ndarray, count: int, at: np.ndarray, far: np.ndarray
) -> Mapping[str, np.ndarray]:
    """Returns what ``transformers_program`` computes of a prompt and of the greedy answer to it.

    Args:
      python: path of a Python that has torch and transformers.
      source: a Hugging Face directory, or a GGUF file.
      prompt: [n] tokens.
      count: number of tokens to generate.
      at: [k] positions in prompt and answer.
      far: [f] positions that the first tokens of the prompt get in another computation.

    Raises:
      ConfigError: there is no such Python.
      RlaxError: transformers cannot load or compute the model, or not within an hour.
    """
    with tempfile.TemporaryDirectory(prefix="rlax-verify-") as name:
        asked, answered = Path(name, "asked.npz"), Path(name, "answered.npz")
        np.savez(asked, prompt=prompt, answer=count, at=at, far=far)
        command = [python, str(_PROGRAM), str(source.absolute()), str(asked), str(answered)]
        done = _run(command, name, _PROGRAM_S)
        if done.returncode:
            said = _last_error(done.stderr.decode(errors="replace"), done.returncode)
            raise RlaxError(f"--verify: transformers cannot compute {source}: {said}")
        with np.load(answered) as file:
            return dict(file)


def _run(command: list[str], directory: str, limit_s: float) -> subprocess.CompletedProcess[bytes]:
    """Runs a Python in a directory that holds no modules, so that none there shadows an import."""
    try:
        return subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
        )
    except OSError as error:
        reason = f"cannot be started: {error.strerror}"
        raise ConfigError("--verify-python", command[0], reason) from None
    except subprocess.TimeoutExpired:
        raise RlaxError(f"--verify: {command[0]} did not end within {limit_s:g} s") from None


def _last_error(text: str, status: int) -> str:
    """Returns the first line of the exception with which a program ended."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return one_line((raised or lines or [f"it ended with status {status}"])[-1])


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
        self._made_with = str(computed["made_with"])
        self._tolerance = tolerance(float(computed["rounding"]))
        tokens = np.concatenate([prompt, computed["answer"]])
        self._rows = [Expected(tokens=tokens, at=at, logits=computed["logits"], answer=ANSWER)]
        if len(far):
            self._rows.append(
                Expected(
                    tokens=prompt[: len(far)],
                    positions=far,
                    at=np.arange(len(far)),
                    logits=computed["far"],
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
