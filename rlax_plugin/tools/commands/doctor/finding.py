"""A finding of ``rlax doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from rlax_plugin.tools.commands.doctor.evidence import Process


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      what: it, with the process, since when.
      ends: the deadline that ends it; empty: none does.
      try_: advice to the operator.
      process: the one to ask for its stacks; None: none.
      lost: True if the run does not go on by itself.
    """

    what: str
    ends: str = ""
    try_: str = ""
    process: Process | None = None
    lost: bool = False
