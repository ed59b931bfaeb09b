"""Limits of a piece of code. Imports nothing of the project."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one piece of code and all processes that it starts.

    Attributes:
      wall_s: seconds from its start until it is killed.
      cpu_s: seconds of CPU time of one process.
      memory_bytes: memory of all its processes; one that asks for more gets a MemoryError.
      processes: number of processes and threads at a time.
      open_files: open files of one process.
      file_bytes: size of one file; its output to stdout or stderr is such a file.
      space_bytes: size of all files that it writes.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 256 * MIB
    processes: int = 32
    open_files: int = 64
    file_bytes: int = MIB
    space_bytes: int = 16 * MIB
