"""The result of ``rlax curate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlax_plugin.curation.choosing import Rule
from rlax_plugin.types import Prompt

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Curated:
    """The prompts that were chosen, and by which rule.

    Attributes:
      table: see ``kept.schema``.
      rule: by which.
      sources: the tables' files.
      prompts: of the config that was given; () without one.
      missing: prompts of the config that no table has.
    """

    table: pa.Table
    rule: Rule
    sources: Sequence[str]
    prompts: Sequence[Prompt] = ()
    missing: int = 0
