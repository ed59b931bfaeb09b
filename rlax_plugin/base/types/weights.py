"""Weight versions, and the source of a run's first weights."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

BASE = "base"
"""The part with the model's own variables."""
ADAPTER = "adapter"
"""The part with low-rank adapters, whose base the part ``base`` is."""
NATIVE = "native"
"""The format of a part whose variables have the trainer's names and shapes."""
SAFETENSORS = "safetensors"
"""The format of a part whose path is a directory of ``*.safetensors`` files with the names, shapes
and orientation of transformers' model."""
MOST_PARTS = 128
"""Parts of one version, at most."""
LONGEST_NAME = 32
"""Characters of a part's name, at most."""

_NAME = re.compile(f"[a-z0-9_]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True, slots=True)
class Descent:
    """The checkpoint of another run whose weights a run starts from, see ``rlax train --from``.

    Attributes:
      run: the other run's directory, an absolute path or a URL.
      step: RL step of the checkpoint.
      checkpoint: its name below ``checkpoints/``.
    """

    run: str
    step: int
    checkpoint: str

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One variable of a published version: shape, dtype name, device fingerprint (uint32)."""

    shape: tuple[int, ...]
    dtype: str
    fingerprint: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array.

        Raises:
          TypeError: the dtype is unknown, as accelerators' own are until imported.
        """
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A copy of a part in the memory of the machine, see ``weights/memory_copies.py``.

    Attributes:
      pid: the process that has it; descriptor: its file descriptor there; -1: it is no copy, but
        the arrays themselves, for a reader in that process.
      token: 16 bytes at its beginning. A descriptor is used again, and the token is not.

    Raises:
      ValueError: these are not a process id, a descriptor and 16 bytes.
    """

    pid: int
    descriptor: int
    token: bytes

    def __post_init__(self) -> None:
        if not (0 < self.pid < 2**31 and -1 <= self.descriptor < 2**31 and len(self.token) == 16):
            raise ValueError(f"a copy of weights in memory is {self}"[:200])

    @property
    def by_reference(self) -> bool:
        """True if it is for a reader in a process of the trainer, which has it."""
        return self.descriptor < 0


@dataclass(frozen=True, slots=True)
class VersionPart:
    """Some variables of a version, which are written and read together.

    A part that has not changed belongs to the next version as it is: both have the same path.

    Attributes:
      name: ``base``, or another, such as ``adapter``.
      path: location of the bytes, which every worker can read.
      tensors: variable name -> spec.
      format: convention of the variables' names and shapes; ``native``: the trainer's.
      memory: a copy for readers on the trainer's machine, which may be there before the path is;
        None: there is none.

    Raises:
      ValueError: name or format is not of at most 32 letters, digits and underscores.
    """

    name: str
    path: str
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    format: str = NATIVE
    memory: MemoryCopy | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for word in (self.name, self.format):
            if not _NAME.fullmatch(word):
                raise ValueError(
                    f"a part of a version has the name or format {word[:100]!r}: expected at most "
                    "32 letters a to z, digits and underscores"
                )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays at its path.

        Raises:
          TypeError: a dtype is unknown, see ``TensorSpec``.
        """
        return sum(spec.nbytes for spec in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Canary:
    """Log-probs that every worker must reproduce before it generates with a version.

    Attributes:
      tokens: int32 [n + 1], a fixed sequence.
      logprobs: float32 [n], nats at temperature 1; ``logprobs[t]`` belongs to ``tokens[t + 1]``
        given ``tokens[: t + 1]``. The trainer computes them from the published buffers.
      tolerance: largest allowed difference, nats; proportionally more for log-probs below -16 nats.

    Raises:
      ValueError: the tolerance is negative, infinite or NaN, with which nothing would be verified.
    """

    tokens: np.ndarray
    logprobs: Any
    tolerance: float

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"a canary has the tolerance {self.tolerance}")


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published set of weights, as the parameter server knows it.

    Attributes:
      version: counts from 0; equals the training step that produced it.
      step: completed training steps.
      parts: together every variable of the model that is neither cache nor RNG state.
      canary: log-probs that a worker must reproduce; None if the trainer computes none.
      converted: the same weights in other formats, for engines that declare one of them
        (``Capabilities.weights_format``). They may come later than the version.

    Raises:
      ValueError: there are no parts or too many, or two share their name or path, or a variable in
        one format; or a converted part is ``native``.
    """

    version: int
    step: int
    parts: tuple[VersionPart, ...]
    canary: Canary | None = None
    converted: tuple[VersionPart, ...] = ()

    def __post_init__(self) -> None:
        every = (*self.parts, *self.converted)
        if not self.parts or len(every) > MOST_PARTS:
            raise ValueError(f"a version has {len(every)} parts, not 1 to {MOST_PARTS}")
        names = [part.name for part in every]
        if not len(names) == len(set(names)) == len(set(self.all_paths)):
            raise ValueError(f"parts {', '.join(names)} share a name or a path")
        formats = {part.format for part in self.converted}
        alike = [[part for part in self.converted if part.format == name] for name in formats]
        for parts in (self.parts, *alike):
            variables = itertools.chain.from_iterable(part.tensors for part in parts)
            if len(set(variables)) != sum(len(part.tensors) for part in parts):
                raise ValueError(f"parts {', '.join(part.name for part in parts)} share variables")
        if any(part.format == NATIVE for part in self.converted):
            raise ValueError(f"of parts {', '.join(names)} a converted one is {NATIVE}")

    def of_format(self, name: str) -> WeightVersion | None:
        """The version as an engine that reads this format is given it; None: it lacks it."""
        parts = self.parts
        if name != NATIVE:
            parts = tuple(part for part in self.converted if part.format == name)
        return replace(self, parts=parts, converted=()) if parts else None

    @property
    def in_memory(self) -> bool:
        """True if readers on the trainer's machine can read all of it in memory."""
        return all(part.memory is not None for part in self.parts)

    @property
    def by_reference(self) -> bool:
        """True if it is the trainer's own arrays, for readers in its processes."""
        return all(part.memory is not None and part.memory.by_reference for part in self.parts)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its parts, which tell it from another version of the same number."""
        return tuple(part.path for part in self.parts)

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths of its parts and of the converted ones."""
        return tuple(part.path for part in (*self.parts, *self.converted))

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Variable name -> spec, of all parts."""
        if len(self.parts) == 1:
            return self.parts[0].tensors
        return dict(itertools.chain.from_iterable(part.tensors.items() for part in self.parts))
