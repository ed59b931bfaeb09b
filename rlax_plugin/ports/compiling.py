"""Data of ``Extension.compile``: the chips to compile for, and the figures of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """The chips that a part is to compile its programs for.

    Attributes:
      topology: name of a slice, such as ``v5e-16``.
      progress: is called with the name of the program that is compiled next.
    """

    topology: str
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """Figures of one program that a part runs, compiled for a slice; all of them are per chip.

    Attributes:
      name: for example ``train step``.
      work: the amount of work of one call, in words.
      seconds: time that tracing and compiling took.
      rejected: the compiler's message if it compiled no program; then figures are missing.
      memory: kind (``arguments``, ``outputs``, ``temporaries``, ``aliased``, ``code``) -> bytes.
        ``aliased`` is the part of the outputs that is in the memory of arguments.
      beside: purpose -> bytes that the process holds while this program runs, and that are none of
        its arguments.
      flops: floating-point operations of one call by a formula: 2 for each token, each weight that
        the token meets, and each pass, of which an update has 3. It counts neither attention nor
        what is computed again in the backward pass.
      collectives: kind of collective operation -> how many the program's text has; those in the
        body of a loop count once.
    """

    name: str
    work: str
    seconds: float
    rejected: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, int] = field(default_factory=dict)
    flops: float = 0.0
    collectives: Mapping[str, int] = field(default_factory=dict)

    @property
    def program_bytes(self) -> int:
        """Memory that the program occupies while it runs."""
        return sum(self.memory.values()) - 2 * self.memory.get("aliased", 0)

    @property
    def total_bytes(self) -> int:
        """Memory of the program and of what the process holds beside it."""
        return self.program_bytes + sum(self.beside.values())
