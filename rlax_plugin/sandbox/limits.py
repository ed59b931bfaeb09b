"""How much a piece of code may use. Imports nothing of the project."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one piece of code and all processes that it starts.

    Attributes:
      wall_s: seconds from its start; then it is killed.
      cpu_s: seconds of CPU time of one process.
      memory_bytes: of the whole tree of processes; one that asks for more gets a MemoryError.
      processes: at a time, threads included.
      open_files: of one process.
      file_bytes: of one file; what it prints to stdout or stderr is such a file.
      space_bytes: of all files that it writes.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 256 * MIB
    processes: int = 32
    open_files: int = 64
    file_bytes: int = MIB
    space_bytes: int = 16 * MIB
